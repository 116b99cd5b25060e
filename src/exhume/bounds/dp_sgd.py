"""Reconstruction robustness of DP-SGD, tight: what the best attack on the worst record could reach.

    nu = N(0, s^2 I_T)                      T noisy steps without the record
    mu = N(b, s^2 I_T),  b ~ Bern(q)^T      with it: Poisson sampling takes it with probability q
    gamma = sup { mu(E) : nu(E) <= kappa }  (Hayes et al. 2023)

which is 1 - beta(kappa) of the trade-off curve T(nu, mu). The direction matters for q < 1: a curve made
symmetric, as accountants report it, is looser. s is the noise multiplier; adjacency is add / remove.

q = 1 has a closed form. For q < 1 the loss log mu / nu of one step is put on a grid, composed T times
and read off (loss_grid.py): an upper bound, by about 1e-4 at most. Where the loss has too wide a range
for a grid (very little noise), it is sampled, and the upper limit of a confidence interval is returned.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

from scipy.special import ndtr, ndtri

from exhume.bounds.guarantees import check_kappa
from exhume.bounds.loss_grid import LossGrid, compose
from exhume.bounds.sampled import sample_bound
from exhume.core.contract import ExhumeError, Key

__all__ = ["Bound", "dp_sgd", "gaussian"]

Method = Literal["closed form", "loss distribution", "Monte Carlo"]
_SURE = 1 - 1e-6  # confidence of a bound that had to be sampled


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
    key = Key.from_seed(0).fold("dp_sgd")  # a bound is a number: the same question, the same answer
    sampled = sample_bound(kappa, noise, steps, rate, key=key, level=_SURE)
    return Bound(sampled.high, "Monte Carlo")


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
