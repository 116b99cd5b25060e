"""Differentially private gradient descent: clip each record's gradient, add Gaussian noise to the sum.

    g = (sum_{i drawn} min(1, C / ||g_i||)·g_i + sigma·C·N(0, I)) / (q N)

N is the number of records the model is trained on, and counts as public: it only scales the rate.
Adjacency is add / remove one record. Every step draws each record with probability q by itself (Poisson
sampling); with q = 1 it sees them all. T steps are a T-fold composition of the (sampled) Gaussian
mechanism with noise multiplier sigma. Weight decay acts after the noise and costs nothing.

The noise of a model is named by its place in the whole job, not in its chunk (`NoiseStream`), and is
drawn in single precision on the CPU: another chunk size or device gives the same noise. So it is with who
enters a step (`SampleStream`): the fixed records' draws do not depend on the extra ones.

What the owner's own training promises: its noise, clipping, sampling and steps.

Either said, or read from Opacus: while the owner's function runs once, every `PrivacyEngine.make_private` is
noted, and what its accountant has counted is what was done.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, NotApplicable
from exhume.core.errors import optional

_ON_GRID = 0.2  # noise multiplier from which the privacy loss fits a grid


@dataclass(frozen=True)
class Privacy:
    """Clipping norm C, noise multiplier sigma and sampling rate q.

    Without any of them, training is the plain one, bit for bit.
    """

    clip: float = math.inf
    noise: float = 0.0
    sampling: float = 1.0  # probability with which a record enters a step

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise ExhumeError(f"clip: {self.clip} given, a norm above 0 is needed")
        if not 0 <= self.noise < math.inf:
            raise ExhumeError(f"noise: {self.noise} given, a number from 0 is needed")
        if self.noise and math.isinf(self.clip):
            raise ExhumeError(f"noise: {self.noise} given without a clip; noise is clip times this")
        if not 0 < self.sampling <= 1:
            raise ExhumeError(
                f"sampling: {self.sampling} given, a probability above 0 and up to 1 is needed"
            )
        if self.sampling < 1 and math.isinf(self.clip):
            raise ExhumeError(f"sampling: {self.sampling} given without a clip")

    @property
    def clips(self) -> bool:
        return math.isfinite(self.clip)

    @property
    def samples(self) -> bool:
        return self.sampling < 1

    @property
    def random(self) -> bool:
        """Whether two trainings on the same records differ."""
        return self.noise > 0 or self.samples

    def still(self) -> Privacy:
        """This privacy without chance, clipping alone: nearly what such training does on average."""
        return Privacy(self.clip)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on the sum of gradients."""
        return self.noise * self.clip if self.noise else 0.0

    def factors(self, squared_norms: Tensor) -> Tensor:
        """min(1, C / ||g||), of any shape."""
        return (self.clip / squared_norms.sqrt()).clamp_(max=1)

    def __str__(self) -> str:
        if not self.clips:
            return "not private"
        drawn = f", sampling rate {self.sampling:g}" if self.samples else ""
        return f"clip {self.clip:g}, noise multiplier {self.noise:g}{drawn}"


NOT_PRIVATE = Privacy()


class NoiseStream:
    """Standard normal noise for s models, step after step; model i of the job has a stream of its own."""

    def __init__(self, key: Key, first: int, models: int, size: int) -> None:
        self._generators = [key.fold("noise", first + index).generator() for index in range(models)]
        self._size = size

    def draw(self, like: Tensor) -> Tensor:
        """(s, p) of the device and type of `like`."""
        drawn = torch.empty(len(self._generators), self._size)
        for row, generator in zip(drawn, self._generators, strict=True):
            torch.randn(self._size, generator=generator, out=row)
        return drawn.to(like)


@runtime_checkable
class Sampler(Protocol):
    """Says who enters the next step."""

    def draw(self, fixed: int, extra: int) -> Tensor:
        """(s, fixed + extra) bool, on the CPU."""
        ...


class SampleStream:
    """Poisson sampling for s models, step after step; model i of the job has streams of its own."""

    def __init__(self, key: Key, first: int, models: int, rate: float) -> None:
        places = range(first, first + models)
        self._fixed = [key.fold("sampling", place).generator() for place in places]
        self._extra = [key.fold("sampling of extra", place).generator() for place in places]
        self._rate = rate

    def draw(self, fixed: int, extra: int) -> Tensor:
        rows = [
            torch.cat([torch.rand(fixed, generator=shared), torch.rand(extra, generator=own)])
            for shared, own in zip(self._fixed, self._extra, strict=True)
        ]
        return torch.stack(rows) < self._rate


@dataclass(frozen=True, eq=False)
class KnownDraw:
    """A known draw that is made in every step."""

    drawn: Tensor  # (s, n)

    def draw(self, fixed: int, extra: int) -> Tensor:
        return self.drawn


def epsilon(noise: float, steps: int, *, delta: float = 1e-5, sampling: float = 1.0) -> float:
    """The epsilon of `steps` steps, add / remove adjacency; infinite without noise.

    Where all records are seen, T Gaussian mechanisms of multiplier sigma are one of sigma / sqrt(T), whose
    epsilon is known in closed form. Sampled steps are composed one by one, by their privacy loss on a grid,
    rounded up; below a multiplier of 0.2 that would need much memory, so that Rényi's divergence takes its
    place, which gives an upper bound.
    """
    if not 0 < delta < 1:
        raise ExhumeError(f"delta: {delta} given, needed between 0 and 1")
    if steps == 0:
        return 0.0
    if noise <= 0:
        return math.inf
    library = optional("dp_accounting", "dp", "epsilon")
    if sampling == 1:
        return float(library.get_epsilon_gaussian(noise / math.sqrt(steps), delta))
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    sampled = library.PoissonSampledDpEvent(sampling, library.GaussianDpEvent(noise))
    adjacency = library.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = (
        PLDAccountant(neighboring_relation=adjacency, value_discretization_interval=1e-3)
        if noise >= _ON_GRID
        else RdpAccountant(list(range(2, 129)), neighboring_relation=adjacency)
    )
    composed = accountant.compose(library.SelfComposedDpEvent(sampled, steps))
    return float(composed.get_epsilon(delta))


def noise_for_epsilon(target: float, steps: int, *, delta: float = 1e-5) -> float:
    """The noise multiplier with which `steps` full-batch steps have this epsilon."""
    if not 0 < target < math.inf:
        raise ExhumeError(f"epsilon: {target} given, a finite number above 0 is needed")
    library = optional("dp_accounting", "dp", "epsilon")
    return float(library.get_sigma_gaussian(target, delta)) * math.sqrt(steps)


@dataclass(frozen=True)
class ClaimedPrivacy:
    """A privacy that can be certified, and who says it."""

    privacy: Privacy
    steps: int
    by: str = "the settings"

    def __str__(self) -> str:
        return f"{self.privacy}, {self.steps} steps, by {self.by}"


def read_from_opacus(train: Callable[[], object]) -> ClaimedPrivacy | None:
    """Runs `train`; None where it does not use Opacus. Raises `NotApplicable` for what has no certificate."""
    with _watching() as seen:
        train()
    if not seen and "opacus" in sys.modules and not seen.ready:  # it was imported just now
        with _watching() as seen:
            train()
    if not seen:
        return None
    if len(seen) > 1:
        raise NotApplicable(
            f"Opacus: {len(seen)} private trainings in one are not certified so far", ever=True
        )
    return privacy_of(*seen[0])


def privacy_of(engine: Any, optimiser: Any, loader: Any) -> ClaimedPrivacy:
    """The privacy of Opacus's `PrivacyEngine` after training, and of what its `make_private` returned.

    Raises `NotApplicable` with the reason why there is no certificate.
    """
    from opacus.data_loader import DPDataLoader
    from opacus.optimizers import DPOptimizer

    history = list(engine.accountant.history)
    if not history:
        raise NotApplicable("Opacus: no private step was taken", ever=True)
    kinds = {(float(noise), float(rate)) for noise, rate, _ in history}
    if len(kinds) > 1:
        raise NotApplicable(
            f"Opacus: noise or sampling rate changed while it trained ({len(kinds)} of them); one is needed",
            ever=True,
        )
    if type(optimiser) is not DPOptimizer or not isinstance(optimiser.max_grad_norm, int | float):
        raise NotApplicable(
            f"Opacus: {type(optimiser).__name__}: only flat clipping to one norm is certified so far",
            ever=True,
        )
    noise, rate = kinds.pop()
    if rate < 1 and not isinstance(loader, DPDataLoader):
        raise NotApplicable(
            f"Opacus: the batches were not drawn by Poisson sampling, so that a rate of {rate:g} promises "
            "nothing; leave poisson_sampling on",
            ever=True,
        )
    if not noise:
        raise NotApplicable(
            "Opacus: noise multiplier 0; without noise nothing is guaranteed", ever=False
        )
    steps = sum(int(count) for _, _, count in history)
    return ClaimedPrivacy(
        Privacy(float(optimiser.max_grad_norm), noise, min(1.0, rate)), steps, "Opacus"
    )


class _Noted(list[tuple[Any, Any, Any]]):
    """Engines, optimisers and loaders; ready: Opacus could be watched."""

    ready = False


@contextmanager
def _watching() -> Iterator[_Noted]:
    noted = _Noted()
    engine = getattr(sys.modules.get("opacus"), "PrivacyEngine", None)
    if engine is None:
        yield noted
        return
    noted.ready, make = True, engine.make_private

    def watched(self: Any, **options: Any) -> Any:
        made = make(self, **options)
        noted.append((self, made[1], made[-1]))
        return made

    engine.make_private = watched
    try:
        yield noted
    finally:
        engine.make_private = make
