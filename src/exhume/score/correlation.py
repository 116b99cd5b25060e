"""Does one number of a target go with another? Spearman's rank correlation and its interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from exhume.core.contract import ExhumeError, Key

__all__ = ["Correlation", "rank_correlation"]


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
