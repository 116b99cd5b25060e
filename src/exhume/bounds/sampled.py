"""Reconstruction robustness of DP-SGD by sampling: an interval that holds gamma with a given confidence.

For any threshold t, let a = nu(loss > t). Where a >= kappa, gamma <= mu(loss > t), and the other way
round. One half of the allowed error goes to an order statistic of the loss under nu, above which nu has
mass Beta(k, n + 1 - k) whatever nu is; the other half to the exact binomial limit under mu, from draws of
its own. A kappa below about 20 / draws leaves the interval wide, never wrong. Equal losses, which little
noise brings about, are told apart by a coin of their own, as the best test does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.stats import binom
from torch import Tensor

from exhume.bounds.guarantees import check_kappa
from exhume.core.contract import ExhumeError, Key
from exhume.score.intervals import clopper_pearson

__all__ = ["Sampled", "sample_bound"]

_CHUNK = 1 << 22  # normal numbers drawn at once


@dataclass(frozen=True)
class Sampled:
    """gamma by the draws' own quantile, and an interval for the true one."""

    gamma: float
    low: float
    high: float


def sample_bound(
    kappa: float,
    noise: float,
    steps: int,
    rate: float = 1.0,
    *,
    key: Key,
    draws: int = 100_000,
    level: float = 0.95,
) -> Sampled:
    """Lower and upper limit of gamma for noise > 0 and steps >= 1; both hold with probability `level`."""
    check_kappa(kappa)
    if not (noise > 0 and steps > 0 and draws > 0):
        raise ExhumeError(
            f"noise {noise}, steps {steps} and draws {draws} must all be above 0 to be sampled"
        )
    if not 0 < rate <= 1:
        raise ExhumeError(f"rate: {rate} given, a probability above 0 is needed to be sampled")
    losses, coins = _losses(noise, steps, rate, draws, key.fold("without"), present=False)
    order = coins.argsort(descending=True)
    order = order[losses[order].argsort(descending=True, stable=True)]
    with_record, own_coins = _losses(noise, steps, rate, draws, key.fold("with"), present=True)
    tail = (1 - level) / 4  # four one-sided statements
    above, below = _ranks(kappa, draws, tail)

    def exceeding(rank: int) -> int:
        """How often the loss with the record exceeds the rank-th largest one without it."""
        loss, coin = losses[order[rank - 1]], coins[order[rank - 1]]
        tied = (with_record == loss) & (own_coins > coin)
        return int(((with_record > loss) | tied).sum())

    def limits(rank: int) -> tuple[float, float]:
        return clopper_pearson(exceeding(rank), draws, 1 - 2 * tail)

    middle = round(kappa * draws)
    return Sampled(
        exceeding(middle) / draws if middle else 0.0,
        max(kappa, limits(below)[0]) if below else kappa,
        limits(above)[1] if above <= draws else 1.0,
    )


def _ranks(kappa: float, draws: int, tail: float) -> tuple[int, int]:
    """Ranks k above which nu surely has at least kappa, and surely at most.

    P[Beta(k, n + 1 - k) <= kappa] = P[Bin(n, kappa) >= k].
    """
    return int(binom.isf(tail, draws, kappa)) + 1, max(0, int(binom.ppf(tail, draws, kappa)))


def _losses(
    noise: float, steps: int, rate: float, draws: int, key: Key, *, present: bool
) -> tuple[Tensor, Tensor]:
    """(draws,) of log mu / nu = sum_t log(1 - q + q e^((2 x_t - 1)/2s^2)), x from mu or nu; and coins."""
    generator = key.generator()
    parts = []
    rows = max(1, _CHUNK // steps)
    for start in range(0, draws, rows):
        shape = (min(rows, draws - start), steps)
        outcome = noise * torch.randn(shape, generator=generator, dtype=torch.float64)
        if present:
            outcome += torch.rand(shape, generator=generator, dtype=torch.float64) < rate
        exponent = (2 * outcome - 1) / (2 * noise**2) + math.log(rate)
        missing = torch.tensor(math.log1p(-rate) if rate < 1 else -math.inf, dtype=torch.float64)
        parts.append(torch.logaddexp(missing, exponent).sum(1))
    coins = torch.rand(draws, generator=key.fold("coins").generator(), dtype=torch.float64)
    return torch.cat(parts), coins
