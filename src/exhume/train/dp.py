"""Differentially private gradient descent: clip each record's gradient, add Gaussian noise to the sum.

    g = (sum_i min(1, C / ||g_i||)·g_i + sigma·C·N(0, I)) / N

N is the number of records the model is trained on, and counts as public: it only scales the rate.
Adjacency is add / remove one record; every step sees every record (sampling rate 1), so T steps are a
T-fold composition of the Gaussian mechanism with noise multiplier sigma. Weight decay acts after the
noise and costs nothing.

The noise of a model is named by its place in the whole job, not in its chunk (`NoiseStream`), and is
drawn in single precision on the CPU: another chunk size or device gives the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from exhume.contract import ExhumeError, Key

__all__ = ["NOT_PRIVATE", "Accountant", "NoiseStream", "Privacy", "epsilon", "noise_for_epsilon"]

Accountant = Literal["exact", "pld", "rdp"]


@dataclass(frozen=True)
class Privacy:
    """Clipping norm C and noise multiplier sigma. Without either, training is the plain one, bit for bit."""

    clip: float = math.inf
    noise: float = 0.0

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise ExhumeError(f"clip: {self.clip} given, a norm above 0 is needed")
        if not 0 <= self.noise < math.inf:
            raise ExhumeError(f"noise: {self.noise} given, a number from 0 is needed")
        if self.noise and math.isinf(self.clip):
            raise ExhumeError(f"noise: {self.noise} given without a clip; noise is clip times this")

    @property
    def clips(self) -> bool:
        return math.isfinite(self.clip)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on the sum of gradients."""
        return self.noise * self.clip if self.noise else 0.0

    def factors(self, squared_norms: Tensor) -> Tensor:
        """min(1, C / ||g||), of any shape."""
        return (self.clip / squared_norms.sqrt()).clamp_(max=1)

    def __str__(self) -> str:
        return (
            f"clip {self.clip:g}, noise multiplier {self.noise:g}" if self.clips else "not private"
        )


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


def epsilon(
    noise: float, steps: int, *, delta: float = 1e-5, accountant: Accountant = "exact"
) -> float:
    """The epsilon of `steps` full-batch steps, add / remove adjacency; infinite without noise.

    "exact": T Gaussian mechanisms of multiplier sigma are one of sigma / sqrt(T), whose epsilon is
    known in closed form. "pld" and "rdp" compose step by step; they serve as cross-checks, are slow or
    loose, and "pld" needs much memory for an epsilon beyond 100.
    """
    if not 0 < delta < 1:
        raise ExhumeError(f"delta: {delta} given, needed between 0 and 1")
    if steps == 0:
        return 0.0
    if noise <= 0:
        return math.inf
    library = _dp_accounting()
    if accountant == "exact":
        return float(library.get_epsilon_gaussian(noise / math.sqrt(steps), delta))
    event = library.SelfComposedDpEvent(library.GaussianDpEvent(noise), steps)
    chosen = _accountants(library)[accountant]()
    return float(chosen.compose(event).get_epsilon(delta))


def noise_for_epsilon(target: float, steps: int, *, delta: float = 1e-5) -> float:
    """The noise multiplier with which `steps` full-batch steps have this epsilon."""
    if not 0 < target < math.inf:
        raise ExhumeError(f"epsilon: {target} given, a finite number above 0 is needed")
    return float(_dp_accounting().get_sigma_gaussian(target, delta)) * math.sqrt(steps)


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ExhumeError("epsilon needs dp-accounting: pip install 'exhume[dp]'") from error
    return dp_accounting


def _accountants(library: Any) -> dict[str, Callable[[], Any]]:
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    adjacency = library.NeighboringRelation.ADD_OR_REMOVE_ONE
    return {
        "pld": lambda: PLDAccountant(neighboring_relation=adjacency),
        "rdp": lambda: RdpAccountant(neighboring_relation=adjacency),
    }
