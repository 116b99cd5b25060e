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
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from exhume.core.errors import ExhumeError as ExhumeError
from exhume.core.errors import NotApplicable as NotApplicable
from exhume.core.records import Records as Records
from exhume.core.records import Vocabulary as Vocabulary

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


# Secrets


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
            fits = tuple(tensor.shape[len(lead) :]) == shape
            if not fits or (flat and lead != flat[0].shape[:-1]):
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
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    """What batch norm saw, where it is sent: `layer.mean` and `layer.var` to (r, c)."""


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


GradientOf = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(p,) parameters, records and targets to the (p,) gradient of their mean loss."""


@runtime_checkable
class ClientTraining(Protocol):
    """How a client of federated learning makes its update, as a value."""

    def simulated(
        self, gradient: GradientOf, at: Tensor, records: Tensor, targets: Tensor
    ) -> Tensor:
        """(p,) the update of these records; gradient: of parameters (p,), records and targets."""
        ...

    @property
    def squared(self) -> bool:
        """The loss is the squared error, so that labels are numbers."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """What the adversary has besides the release. A threat model is which fields are set."""

    architecture: Architecture | None = None
    recipe: Recipe | None = None  # the training algorithm
    initial: Tensor | None = None  # (p,) parameters before training
    fixed: Records | None = None  # D-: every training record but the unknown one
    copies: int | None = None  # times that the unknown record is trained on; None: once
    shadow: Records | None = None  # records of the adversary's own, to train shadow models on
    answers: Tensor | None = (
        None  # (n, *answer) what belongs to these, beyond labels: translations, features
    )
    public: Records | None = None  # further records of the same distribution
    candidates: Records | None = None  # records among which the unknown one is, each as likely
    batch_size: int | None = None  # records behind one gradient
    local: ClientTraining | None = None  # how they became an update; None: one plain step
    labels: Tensor | None = None  # labels of the unknown records
    centre: Tensor | None = None  # (*shape) what the released preprocessing subtracts from inputs
    features: tuple[int, ...] | None = None  # shape of what a split network's client sends
    seen: Tensor | None = None  # (n, *feature) what that client sent before, its inputs unknown
    parts: Mapping[str, nn.Module] = field(default_factory=dict)  # known pieces of a split network

    def known(self) -> tuple[str, ...]:
        """Names of the fields that are set, in order."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return tuple(n for n, v in values.items() if v is not None and (n != "parts" or v))

    def lacking(self, *names: str) -> tuple[str, ...]:
        """Those of the names that are not set."""
        return tuple(name for name in names if name not in self.known())

    def require(self, who: str, *names: str) -> tuple[Any, ...]:
        """What these names hold; `NotApplicable` where some are not set. who: the attack, in words."""
        if lacking := self.lacking(*names):
            raise NotApplicable(f"{who} needs to know: {', '.join(lacking)}", ever=True)
        return tuple(getattr(self, name) for name in names)


# Storage and progress

Progress = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)`; a stage's first call has `done == 0` or what was resumed."""


def silent(stage: str, done: int, total: int) -> None:
    """The progress callback of those who want none."""


class Shard(dict[str, Tensor]):
    """Tensors by name, and beside them small notes of anything that JSON can say."""

    def __init__(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None):
        super().__init__(tensors)
        self.notes = dict(notes or {})


@runtime_checkable
class Store(Protocol):
    """Finished pieces of work, by content address. A store may forget everything: functions stay pure."""

    def load(self, address: str) -> Shard | None:
        """What was saved there, or None. A damaged piece counts as not there."""
        ...

    def save(self, address: str, shard: Mapping[str, Tensor]) -> None:
        """All or nothing, whatever happens to the process meanwhile; a `Shard` with its notes."""
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

    @property
    def converged(self) -> bool:
        return self.outcome is Outcome.CONVERGED


@dataclass(frozen=True)
class Cost:
    seconds: float = 0.0
    models: int = 0  # networks trained by the attack


FILLED_UP = float("-inf")  # confidence of a candidate that stands for none


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack brings back: k candidates per release, best first by its own confidence."""

    candidates: Tensor  # (r, k, *record)
    confidence: Tensor  # (r, k), larger = surer; comparable within one attack; else `FILLED_UP`
    status: Status
    cost: Cost = Cost()
    labels: Tensor | None = None  # (r, k) labels inferred by the attack
    observed: Mapping[str, float] = field(default_factory=dict)  # the attack's own figures, by name

    @property
    def real(self) -> Tensor:
        """(r, k) bool: the candidates that were found; the others only fill a shorter row."""
        return torch.isfinite(self.confidence)

    def found(self, release: int = 0) -> Tensor:
        """(m, *record) the real candidates of one release, best first."""
        return self.candidates[release][self.real[release]]

    def sure(self, release: int = 0) -> Tensor:
        """(m,) the attack's confidence in each of these."""
        return self.confidence[release][self.real[release]]

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
