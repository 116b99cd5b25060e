"""Reconstruction robustness of DP-SGD, tight: what the best attack on the worst record could reach.

    nu = N(0, s^2 I_T)                      T noisy steps without the record
    mu = N(b, s^2 I_T),  b ~ Bern(q)^T      with it: Poisson sampling takes it with probability q
    gamma = sup { mu(E) : nu(E) <= kappa }  (Hayes et al. 2023)

which is 1 - beta(kappa) of the trade-off curve T(nu, mu). The direction matters for q < 1: a curve made
symmetric, as accountants report it, is looser. s is the noise multiplier; adjacency is add / remove.

q = 1 has a closed form. For q < 1 the loss log mu / nu of one step is put on a grid, composed T times
and read off: an upper bound, by about 1e-4 at most. Where the loss has too wide a range for a grid
(very little noise), two upper bounds remain: no noise at all tells more, and so does a record in every step.

The privacy loss of the subsampled Gaussian on a grid: one step, T steps, and the best test on it.

The loss of an outcome is log mu / nu (dp_sgd.py). The mass of one step between two points of the grid is
split between the two such that its share under mu and its share under nu stay what they are: a pair of
discrete distributions whose hockey-stick curve

    H(lambda) = sup_E mu(E) - lambda nu(E),   lambda = e^loss

is the true one at the grid's points and its chord between ("connect the dots", Doroshenko et al. 2022).
The true curve is convex, so the pair is easier to tell apart than the truth: whatever is computed from it
is an upper bound, also after composition. Chords are off by the order of h^2 a step, h the spacing.

    gamma(kappa) = min over lambda of  lambda kappa + H(lambda)

T steps: a discrete Fourier transform to the power of T. What lies beyond the window, 2e-12 at most by
Chernoff's bound, counts as a loss of infinity. Rounding adds about 1e-10.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtr, ndtri

from exhume.bounds.prior import check_kappa
from exhume.core.contract import ExhumeError

Method = Literal["closed form", "loss distribution", "without a grid"]
Array = NDArray[np.float64]
_TAIL = 1e-12  # mass beyond each end of the window
_SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22)  # points of the window
_FINE, _COARSEST = 1e-4, 1e-2  # T·h^2 that is fine enough, and beyond which no grid is used
_OVERFLOW = 690.0  # exponent from which on mass goes to the larger loss, which is safe
_ROUGH = 4096  # points of the grid from which the window is found


@dataclass(frozen=True)
class Bound:
    """gamma, and how it was found."""

    gamma: float
    method: Method


def gaussian(kappa: float, noise: float, steps: int = 1) -> float:
    """Every step sees the record: gamma = Phi(Phi^-1(kappa) + sqrt(T)/s)."""
    _check(kappa, noise, steps, 1.0)
    if steps == 0:
        return kappa
    if noise == 0:
        return 1.0
    if kappa in (0.0, 1.0):
        return kappa
    return float(ndtr(ndtri(kappa) + math.sqrt(steps) / noise))


def dp_sgd(kappa: float, noise: float, steps: int, rate: float = 1.0) -> Bound:
    """gamma after `steps` steps of noise multiplier `noise` and Poisson sampling at `rate`."""
    _check(kappa, noise, steps, rate)
    if rate == 1:
        return Bound(gaussian(kappa, noise, steps), "closed form")
    if steps == 0 or rate == 0 or kappa == 1:
        return Bound(kappa, "closed form")
    if noise == 0:  # one step with the record gives it away; without it the adversary guesses
        missed = (1 - rate) ** steps
        return Bound(1 - missed + missed * kappa, "closed form")
    grid = _grid(noise, steps, rate)
    if grid is not None:
        return Bound(grid.gamma(kappa), "loss distribution")
    seen_always, no_noise = gaussian(kappa, noise, steps), dp_sgd(kappa, 0.0, steps, rate).gamma
    return Bound(min(seen_always, no_noise), "without a grid")


@functools.lru_cache(maxsize=4)
def _grid(noise: float, steps: int, rate: float) -> LossGrid | None:
    return compose(noise, steps, rate)


def _check(kappa: float, noise: float, steps: int, rate: float) -> None:
    check_kappa(kappa)
    if not 0 <= noise < math.inf:
        raise ExhumeError(f"noise: {noise} given, a finite number of 0 or more needed")
    if steps < 0:
        raise ExhumeError(f"steps: {steps} given, at least 0 needed")
    if not 0 <= rate <= 1:
        raise ExhumeError(f"rate: {rate} given, a probability from 0 to 1 is needed")


@dataclass(frozen=True, eq=False)
class LossGrid:
    """Losses first·h, (first + 1)·h, ..., and their probabilities under mu."""

    first: int
    spacing: float
    mass: Array  # (m,)
    infinite: float  # mass of outcomes that tell for certain

    @property
    def losses(self) -> Array:
        return _points(self.first, len(self.mass), self.spacing)

    def curve(self) -> Array:
        """(m,) H at the losses: the sum over larger ones of mass·(1 - e^-gap), plus infinity's."""
        shrink = math.exp(-self.spacing)
        above = np.cumsum(self.mass[::-1])[::-1] - self.mass
        # discounted_i = e^-h (discounted_{i+1} + mass_{i+1}), from the top down
        discounted = lfilter([0.0, shrink], [1.0, -shrink], self.mass[::-1])[::-1]
        found: Array = self.infinite + np.maximum(above - discounted, 0.0)
        return found

    def gamma(self, kappa: float) -> float:
        """The largest probability under mu of what has probability kappa under nu."""
        with np.errstate(over="ignore"):
            lifted = kappa * np.exp(self.losses) if kappa else 0.0
        return min(1.0, max(kappa, float(np.min(lifted + self.curve()))))


def compose(noise: float, steps: int, rate: float) -> LossGrid | None:
    """`steps` steps, 0 < rate < 1, noise > 0; None where no grid is fine enough."""
    low, high = math.log1p(-rate), _largest(noise, steps, rate)
    bottom, top = _window(_one_step(noise, rate, low, high, (high - low) / _ROUGH), steps)
    for size in _SIZES:
        spacing = (top - bottom) / (size - 2)
        if steps * spacing**2 <= _FINE:
            break
    if steps * spacing**2 > _COARSEST or (high - low) / spacing > _SIZES[-1]:
        return None
    one = _one_step(noise, rate, low, high, spacing)
    folded = np.bincount(np.arange(len(one.mass)) % size, weights=one.mass, minlength=size)
    together = np.fft.irfft(np.fft.rfft(folded) ** steps, n=size)
    first = math.floor(bottom / spacing)
    placed = np.roll(np.maximum(together, 0.0), -((first - steps * one.first) % size))
    infinite = -math.expm1(steps * math.log1p(-one.infinite)) + 2 * _TAIL
    return LossGrid(first, spacing, placed, infinite)


def _largest(noise: float, steps: int, rate: float) -> float:
    """A loss of one step that is exceeded with negligible probability: log(1 - q + q e^((2x - 1)/2s^2))."""
    furthest = 1 - noise * float(ndtri(_TAIL / (4 * steps)))
    exponent = (2 * furthest - 1) / (2 * noise**2)
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))


def _one_step(noise: float, rate: float, low: float, high: float, spacing: float) -> LossGrid:
    first, last = math.floor(low / spacing), math.ceil(high / spacing)
    losses = _points(first, last + 1 - first, spacing)
    cuts = _outcomes(losses, noise, rate)
    nu, shifted = _between(cuts / noise), _between((cuts - 1) / noise)
    mu = (1 - rate) * nu + rate * shifted
    # M and N between lambda_i and lambda_{i+1}: lower + upper = M, and over their lambdas they sum to N
    lambdas = np.exp(np.minimum(losses[:-1], _OVERFLOW))
    upper = np.clip((mu - lambdas * nu) / -math.expm1(-spacing), 0.0, mu)
    mass = np.append(mu - upper, 0.0) + np.append(0.0, upper)
    mass[0] += (1 - rate) * ndtr(cuts[0] / noise) + rate * ndtr((cuts[0] - 1) / noise)
    beyond = (1 - rate) * ndtr(-cuts[-1] / noise) + rate * ndtr((1 - cuts[-1]) / noise)
    return LossGrid(first, spacing, mass, float(beyond))


def _points(first: int, count: int, spacing: float) -> Array:
    return np.arange(first, first + count, dtype=np.float64) * spacing


def _outcomes(losses: Array, noise: float, rate: float) -> Array:
    """The outcome x with each loss; -inf where there is none so small."""
    excess = losses - math.log1p(-rate)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        log_odds = excess + np.log(-np.expm1(-excess)) + math.log1p(-rate) - math.log(rate)
    found: Array = np.where(excess > 0, noise**2 * log_odds + 0.5, -np.inf)
    return found


def _between(cuts: Array) -> Array:
    """(m,) to (m - 1,): standard normal mass between neighbours, from the side where it is small."""
    below, above = np.diff(ndtr(cuts)), -np.diff(ndtr(-cuts))
    found: Array = np.where(cuts[1:] > 0, above, below)
    return found


def _window(one: LossGrid, steps: int) -> tuple[float, float]:
    """The losses between which the sum of T steps lies, but for _TAIL at either end (Chernoff)."""
    present = one.mass > 0
    losses, logs = one.losses[present], np.log(one.mass[present])
    bottom, top = steps * float(losses[0]), steps * float(losses[-1])
    for tilt in np.geomspace(1e-3, 1e3, 61) / float(np.ptp(losses)):
        up = float(np.logaddexp.reduce(logs + tilt * losses))
        down = float(np.logaddexp.reduce(logs - tilt * losses))
        top = min(top, (steps * up - math.log(_TAIL)) / tilt)
        bottom = max(bottom, -(steps * down - math.log(_TAIL)) / tilt)
    return bottom - one.spacing, top + one.spacing
