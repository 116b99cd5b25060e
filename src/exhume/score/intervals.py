"""Statistics of scores: intervals of a share, what a test would notice, rank correlation, AUC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta, binom, rankdata
from torch import Tensor

from exhume.core.contract import ExhumeError, Key
from exhume.core.results import Rate


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


def success_rates(won: Tensor, lucky: Tensor) -> dict[str, float]:
    """Success, and success by chance, each with its interval, and the smallest rate that would be noticed.

    won: (t,) which records came back. lucky: (d,) which did among those that could only come back by chance.
    """
    trials = len(won)
    by_chance = share_metrics("null_success", int(lucky.sum()), len(lucky))
    ceiling = by_chance["null_success_high"]
    return {
        **share_metrics("success", int(won.sum()), trials),
        **by_chance,
        "detectable_rate": detectable_rate(trials, ceiling) if trials else 1.0,
    }


def share_metrics(name: str, successes: int, trials: int) -> dict[str, float]:
    """A share and its exact 95% interval: `name`, `name_low`, `name_high`."""
    rate = rate_of(successes, trials)
    return {name: rate.share, f"{name}_low": rate.low, f"{name}_high": rate.high}


def rate_of(
    successes: int, trials: int, *, chance: float | None = None, detectable: float = 0.0
) -> Rate:
    """A share with its exact 95% interval. chance: the share among records that were not in the release."""
    low, high = clopper_pearson(successes, trials) if trials else (0.0, 1.0)
    return Rate(successes, trials, low, high, chance, detectable)


@dataclass(frozen=True)
class Correlation:
    rho: float
    low: float
    high: float

    def metrics(self, prefix: str) -> dict[str, float]:
        return {
            f"{prefix}.rho": self.rho,
            f"{prefix}.rho_low": self.low,
            f"{prefix}.rho_high": self.high,
        }

    def __str__(self) -> str:
        return f"{self.rho:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def rank_correlation(
    left: Tensor, right: Tensor, key: Key, *, level: float = 0.95, draws: int = 2000
) -> Correlation:
    """Rank correlation of (t,) and (t,) values; the interval is the bootstrap's percentiles over targets.

    Where one of the two does not vary nothing can be said: 0, between -1 and 1.
    """
    if left.shape != right.shape or left.ndim != 1 or len(left) < 3:
        raise ExhumeError(
            f"rank correlation: shapes {tuple(left.shape)} and {tuple(right.shape)} given, "
            "twice (t,) with at least 3 targets needed"
        )
    both = torch.stack([left, right]).double().cpu()
    if bool((both == both[:, :1]).all(1).any()):
        return Correlation(0.0, -1.0, 1.0)
    picks = torch.randint(len(left), (draws, len(left)), generator=key.generator())
    rho = _spearman(both[0][None], both[1][None])[0]
    drawn = _spearman(both[0][picks], both[1][picks])
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Correlation(float(rho), float(low), float(high))


def _spearman(left: Tensor, right: Tensor) -> np.ndarray:
    """Row by row; 0 where a row does not vary. Ties share their mean rank."""
    ranks = [rankdata(values.numpy(), axis=1) for values in (left, right)]
    a, b = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    size = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    product = (a * b).sum(1)
    rho: np.ndarray = np.divide(product, size, out=np.zeros_like(product), where=size > 0)
    return rho


# How well a membership score separates models trained with a record from models trained without it. One AUC
# per target, then the mean over targets (Balle22, Fig. 10): pooling the scores of different targets first
# would mix up easy records with members.


def auc(members: Tensor, others: Tensor) -> Tensor:
    """P(member's score > other's), ties counting half: (s, t) and (u, t) scores to (t,), or 1-D to ().

    Mann-Whitney by ranks: s·log s, not s·u.
    """
    _check_scores(members, others)
    order = others.double().movedim(0, -1).contiguous().sort(dim=-1).values
    asked = members.double().movedim(0, -1).contiguous()
    below = torch.searchsorted(order, asked, right=False)
    not_above = torch.searchsorted(order, asked, right=True)
    return (below + not_above).double().mean(-1) / (2 * len(others))


def mean_auc(members: Tensor, others: Tensor) -> float:
    """(s, t), (u, t): the AUC of each target, averaged."""
    return float(auc(members, others).mean())


def gap_over_spread(members: Tensor, others: Tensor) -> Tensor:
    """Difference of the means over the pooled standard deviation, per target (d'): (s, t), (u, t) to (t,).

    Infinite where neither group varies and the means differ; zero where they do not differ at all.
    """
    _check_scores(members, others, least=2)
    gap = members.double().mean(0) - others.double().mean(0)
    spread = ((members.double().var(0) + others.double().var(0)) / 2).sqrt()
    return torch.where(gap == 0, torch.zeros_like(gap), gap / spread)


def _check_scores(members: Tensor, others: Tensor, least: int = 1) -> None:
    if len(members) < least or len(others) < least:
        raise ExhumeError(
            f"membership: {len(members)} models with and {len(others)} without the record, "
            f"at least {least} of each needed"
        )
    if members.shape[1:] != others.shape[1:]:
        raise ExhumeError(
            f"membership: scores of shapes {tuple(members.shape)} and {tuple(others.shape)} are not "
            "of the same targets"
        )
    if bool(torch.isnan(members).any()) or bool(torch.isnan(others).any()):
        raise ExhumeError("membership: a score is not a number")
