"""The nouns of exhume: what is released, what the adversary knows, what is secret, what an attack returns.

Everything else in the package is a function from some of these values to others. An attack receives
a `Release` and a `Knowledge`; there is no argument through which a `Secret` could reach it.

Shapes: r releases, n records, s models trained side by side, e extra records per model, k candidates
per release, p parameters of one model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

__all__ = [
    "Activations",
    "Architecture",
    "Attack",
    "Cost",
    "ExhumeError",
    "Gradient",
    "Key",
    "Knowledge",
    "Layout",
    "NotApplicable",
    "Outcome",
    "Prepared",
    "Progress",
    "QueryingAttack",
    "Recipe",
    "Reconstruction",
    "Records",
    "Release",
    "ReleaseDefence",
    "Secret",
    "Status",
    "Store",
    "TrainingDefence",
    "Vocabulary",
    "Weights",
    "silent",
]


class ExhumeError(Exception):
    """Something the user can act on, said in one sentence. The command line prints it and exits 2."""


class NotApplicable(ExhumeError):  # noqa: N818 - a result as much as an error
    """An attack cannot be mounted with this release and this knowledge."""

    def __init__(self, why: str, *, ever: bool) -> None:
        super().__init__(why)
        self.why = why
        self.ever = ever  # could it work with more knowledge or a later version, or never?


# Randomness


@dataclass(frozen=True)
class Key:
    """A name for a stream of random numbers. Deriving is free, so every item of work has its own.

    `Key.from_seed(0).fold("shadow", 17)` is the same on every machine and in every order of work.
    """

    digest: str

    @staticmethod
    def from_seed(seed: int) -> Key:
        return Key(hashlib.sha256(f"exhume seed {seed}".encode()).hexdigest())

    def fold(self, *parts: str | int) -> Key:
        """A new key, determined by this one and the parts. `1` and `"1"` are different parts."""
        text = json.dumps([self.digest, *parts], separators=(",", ":"))
        return Key(hashlib.sha256(text.encode()).hexdigest())

    def seed(self) -> int:
        """63 bits of the digest, for libraries that want a number."""
        return int(self.digest[:16], 16) >> 1

    def generator(self) -> torch.Generator:
        """A fresh CPU generator; drawing on the CPU keeps the numbers independent of the device."""
        return torch.Generator().manual_seed(self.seed())


# Records


@dataclass(frozen=True)
class Vocabulary:
    """What the numbers of token sequences stand for."""

    words: tuple[str, ...] = ()  # by number; empty: not known
    padding: int | None = None  # fills a sequence up; no token of the text
    given: bool = (
        True  # False: the words were numbered here, so that no trained model knows the numbers
    )


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records. Images are float in [0, 1], channels first; vectors are one-dimensional.

    Token sequences are int64 (n, l) and have a vocabulary; nothing else has one.
    `inputs` may carry two leading axes (s, e) where a record set is given per model.
    """

    inputs: Tensor  # (n, *shape) or (s, e, *shape)
    labels: Tensor  # (n,) or (s, e), int64 in [0, len(classes))
    classes: tuple[str, ...]
    vocabulary: Vocabulary | None = None

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, index: slice | Tensor) -> Records:
        return Records(self.inputs[index], self.labels[index], self.classes, self.vocabulary)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.inputs.shape[self.labels.ndim :])

    def to(self, device: torch.device) -> Records:
        moved = self.inputs.to(device), self.labels.to(device)
        return Records(*moved, self.classes, self.vocabulary)

    def one_each(self) -> Records:
        """The same records as n sets of one: (n, *shape) becomes (n, 1, *shape)."""
        return Records(self.inputs[:, None], self.labels[:, None], self.classes)

    def with_extra(self, extra: Records, model: int) -> Records:
        """These and the extra records (s, e, *shape) of one model."""
        return Records(
            torch.cat([self.inputs, extra.inputs[model]]),
            torch.cat([self.labels, extra.labels[model]]),
            self.classes,
        )

    def none_for(self, models: int) -> Records:
        """An empty set for each of several models, of the same record shape."""
        return Records(
            self.inputs.new_zeros((models, 0, *self.shape)),
            self.labels.new_zeros((models, 0)),
            self.classes,
        )


class Secret:
    """The private records behind a release: made by victims, opened by scoring and training-time defences."""

    __slots__ = ("__records",)

    def __init__(self, records: Records) -> None:
        self.__records = records

    def open(self) -> Records:
        return self.__records

    def __repr__(self) -> str:
        return "Secret(...)"  # a log line must not leak what the type protects


# Releases


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in the order in which they are flattened."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(module: nn.Module) -> Layout:
        named = list(module.named_parameters())
        return Layout(tuple(n for n, _ in named), tuple(tuple(t.shape) for _, t in named))

    @property
    def size(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """(..., p) to one (..., *shape) view per name."""
        if flat.shape[-1] != self.size:
            raise ExhumeError(
                f"parameters: {flat.shape[-1]} numbers given, this architecture has {self.size}"
            )
        parts = torch.split(flat, [prod(shape) for shape in self.shapes], dim=-1)
        lead = flat.shape[:-1]
        return {
            name: part.reshape((*lead, *shape))
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def join(self, named: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `split`. Every name must be there with its shape, and no other."""
        missing, extra = set(self.names) - set(named), set(named) - set(self.names)
        if missing or extra:
            raise ExhumeError(
                f"parameters: missing {sorted(missing) or 'none'}, unexpected {sorted(extra) or 'none'}"
            )
        flat: list[Tensor] = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            tensor = named[name]
            lead = tensor.shape[: tensor.ndim - len(shape)]
            if tuple(tensor.shape[len(lead) :]) != shape:
                raise ExhumeError(
                    f"parameter {name}: shape {tuple(tensor.shape)} given, {shape} expected"
                )
            if flat and lead != flat[0].shape[:-1]:
                raise ExhumeError(
                    f"parameter {name}: shape {tuple(tensor.shape)} given, {shape} expected"
                )
            flat.append(tensor.reshape(*lead, prod(shape)))
        return torch.cat(flat, dim=-1)


@dataclass(frozen=True, eq=False)
class Weights:
    """Trained parameters of r models of one architecture."""

    parameters: Tensor  # (r, p)
    layout: Layout
    trail: Tensor | None = None  # (r, T, p) before each of T steps, where every step was seen
    drawn: Tensor | None = None  # (r, T, n) which fixed records a step saw, where draws were seen


@dataclass(frozen=True, eq=False)
class Gradient:
    """r gradients (or updates), each of one batch, taken at known parameters."""

    values: Tensor  # (r, p)
    layout: Layout
    at: Tensor  # (p,) or (r, p)


@dataclass(frozen=True, eq=False)
class Activations:
    """What leaves the client of a split network for n private inputs."""

    values: Tensor  # (n, *feature)
    cut: str  # name of the layer whose output this is


Release = Weights | Gradient | Activations


# Knowledge


@runtime_checkable
class Architecture(Protocol):
    """A network as a value: small enough to name, hash and send to another machine."""

    @property
    def layout(self) -> Layout: ...
    @property
    def input_shape(self) -> tuple[int, ...]: ...
    def initial(self, key: Key) -> Tensor:
        """(p,) parameters drawn by the architecture's own initialisation."""
        ...

    def build(self) -> nn.Module:
        """A module whose parameters follow `layout`."""
        ...


@runtime_checkable
class Recipe(Protocol):
    """How a victim was trained, as a value."""

    @property
    def architecture(self) -> Architecture: ...
    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        """Train s models at once, model i on `fixed` and `extra[i]`.

        initial: (p,) shared, or (s, p); extra: (s, e, ...), e may be 0; returns (s, p).
        Randomness of model i is named by the key and `first + i`, its place in the whole job, so that
        it does not depend on how the job is cut.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """What the adversary has besides the release. A threat model is which fields are set."""

    architecture: Architecture | None = None
    recipe: Recipe | None = None  # the training algorithm
    initial: Tensor | None = None  # (p,) parameters before training
    fixed: Records | None = None  # D-: every training record but the unknown one
    shadow: Records | None = None  # records of the adversary's own, to train shadow models on
    answers: Tensor | None = (
        None  # (n, *answer) what belongs to these, beyond labels: translations, features
    )
    public: Records | None = None  # further records of the same distribution
    candidates: Records | None = None  # records among which the unknown one is, each as likely
    batch_size: int | None = None  # records behind one gradient
    labels: Tensor | None = None  # labels of the unknown records
    centre: Tensor | None = None  # (*shape) what the released preprocessing subtracts from inputs
    features: tuple[int, ...] | None = None  # shape of what a split network's client sends
    seen: Tensor | None = None  # (n, *feature) what that client sent before, its inputs unknown
    parts: Mapping[str, nn.Module] = field(default_factory=dict)  # known pieces of a split network

    def known(self) -> tuple[str, ...]:
        """Names of the fields that are set, in order."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return tuple(
            name
            for name, value in values
            if value is not None and not (name == "parts" and not value)
        )

    def lacking(self, *names: str) -> tuple[str, ...]:
        """Those of the names that are not set."""
        known = self.known()
        return tuple(name for name in names if name not in known)


# Storage and progress

Progress = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)`; a stage's first call has `done == 0` or what was resumed."""


def silent(stage: str, done: int, total: int) -> None:
    """The progress callback of those who want none."""


@runtime_checkable
class Store(Protocol):
    """Finished pieces of work, by content address. A store may forget everything: functions stay pure."""

    def load(self, address: str) -> dict[str, Tensor] | None:
        """What was saved there, or None. A damaged piece counts as not there."""
        ...

    def save(self, address: str, tensors: Mapping[str, Tensor]) -> None:
        """All or nothing, whatever happens to the process meanwhile."""
        ...


# Results


class Outcome(Enum):
    CONVERGED = "converged"
    STOPPED_EARLY = "stopped early"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Status:
    """How an attack ended. Failing to apply is a result, not an accident."""

    outcome: Outcome
    reason: str = ""
    ever: bool = True  # for NOT_APPLICABLE: could it work with more knowledge or a later version?


@dataclass(frozen=True)
class Cost:
    seconds: float = 0.0
    models: int = 0  # networks trained by the attack


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack brings back: k candidates per release, best first by its own confidence."""

    candidates: Tensor  # (r, k, *record)
    confidence: Tensor  # (r, k), larger = surer; comparable within one attack only
    status: Status
    cost: Cost = Cost()
    labels: Tensor | None = None  # (r, k) labels inferred by the attack
    observed: Mapping[str, float] = field(default_factory=dict)  # the attack's own figures, by name

    @staticmethod
    def none(releases: int, shape: tuple[int, ...], why: NotApplicable) -> Reconstruction:
        """The empty result of an attack that does not apply."""
        status = Status(Outcome.NOT_APPLICABLE, why.why, why.ever)
        return Reconstruction(torch.zeros(releases, 0, *shape), torch.zeros(releases, 0), status)


# Attacks and defences


@runtime_checkable
class Prepared(Protocol):
    """An attack with all its release-independent work done."""

    def run(self, releases: Release) -> Reconstruction: ...


@runtime_checkable
class Attack(Protocol):
    """A frozen dataclass of hyper-parameters."""

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> Prepared:
        """All work that does not depend on the release; raises `NotApplicable`."""
        ...


@runtime_checkable
class QueryingAttack(Attack, Protocol):
    """An adversary who chooses the parameters at which the victim computes its gradient."""

    def query(self, architecture: Architecture, key: Key) -> Tensor: ...


@runtime_checkable
class ReleaseDefence(Protocol):
    """Turns a release into a safer one. Strength zero is the identity."""

    @property
    def strength(self) -> float: ...
    def protect(self, release: Release, key: Key) -> Release: ...


@runtime_checkable
class TrainingDefence(Protocol):
    """Turns a way of training into a safer one. Strength zero is the identity."""

    @property
    def strength(self) -> float: ...
    def harden(self, recipe: Recipe) -> Recipe: ...
