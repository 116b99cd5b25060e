"""Intervals for a share of successes, and how small a share a test of this size would notice."""

from __future__ import annotations

import torch
from scipy.stats import beta, binom
from torch import Tensor

from exhume.core.contract import Key
from exhume.core.results import Rate

__all__ = [
    "bootstrap",
    "clopper_pearson",
    "clustered",
    "detectable_rate",
    "rate_of",
    "rate_reaching",
]


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval for a binomial share."""
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes == trials else float(beta.isf(tail, successes + 1, trials - successes))
    return low, high


def bootstrap(
    values: Tensor, key: Key, *, level: float = 0.95, draws: int = 2000
) -> tuple[float, float]:
    """Percentile interval of the mean of (t,) values.

    A share of exactly 0 or 1 leaves the bootstrap nothing to vary; then the exact interval is given.
    """
    values = values.double()
    total = float(values.sum())
    if total in (0.0, float(len(values))) and bool(((values == 0) | (values == 1)).all()):
        return clopper_pearson(int(total), len(values), level)
    picks = torch.randint(len(values), (draws, len(values)), generator=key.generator())
    means = values.cpu()[picks].mean(1)
    tail = (1 - level) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=means.dtype))
    return float(low), float(high)


def clustered(
    values: Tensor,
    key: Key,
    other: Tensor | None = None,
    *,
    level: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Percentile interval of the mean of (clients, shadows, images), or of its difference to another mean.

    Clients are drawn anew, then shadows and images within each. The other values have the same clients and
    images, and shadows of their own. With few clients the interval is itself uncertain, and rather too short.
    """
    arrays = (
        [values.double().cpu()] if other is None else [values.double().cpu(), other.double().cpu()]
    )
    clients, _, images = arrays[0].shape
    generator = key.generator()
    drawn = torch.randint(clients, (draws, clients), generator=generator)
    picked = torch.randint(images, (draws, clients, images), generator=generator)
    means = []
    for array in arrays:
        count = array.shape[1]
        which = torch.randint(count, (draws, clients, count), generator=generator)
        chosen = torch.stack(
            [
                array[drawn[:, i][:, None], which[:, i]].mean(1).gather(1, picked[:, i]).mean(1)
                for i in range(clients)
            ]
        )
        means.append(chosen.mean(0))
    apart = means[0] if other is None else means[0] - means[1]
    tail = (1 - level) / 2
    low, high = torch.quantile(apart, torch.tensor([tail, 1 - tail], dtype=apart.dtype))
    return float(low), float(high)


def detectable_rate(trials: int, ceiling: float, *, power: float = 0.95) -> float:
    """The smallest true success rate whose lower limit exceeds `ceiling` with probability `power`.

    1.0 if even certain success would not: then the test has no power at all.
    """
    needed = next(
        (k for k in range(trials + 1) if clopper_pearson(k, trials)[0] > ceiling), trials + 1
    )
    return rate_reaching(needed, trials, power=power)


def rate_reaching(needed: int, trials: int, *, power: float = 0.95) -> float:
    """The smallest true rate that gives so many successes with probability `power`; 1.0: none does."""
    if needed > trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if float(binom.sf(needed - 1, trials, middle)) >= power:
            high = middle
        else:
            low = middle
    return high


def rate_of(
    successes: int, trials: int, *, chance: float | None = None, detectable: float = 0.0
) -> Rate:
    """With its exact 95% interval. chance: the share among records that were not in the release."""
    low, high = clopper_pearson(successes, trials) if trials else (0.0, 1.0)
    return Rate(successes, trials, low, high, chance, detectable)
