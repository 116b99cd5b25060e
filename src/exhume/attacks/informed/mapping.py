"""Ridge regression from what was read off a model to the record behind it, with its expected error."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from exhume.attacks.informed.ridge import INTERCEPT, Ridge, fit_ridge, left_out_variance, variance

__all__ = ["Mapping", "fit_mapping"]


@dataclass(frozen=True, eq=False)
class Mapping:
    """A map from directions to records."""

    anchors: Tensor  # (n, p) directions it was fitted on, fp64
    mean: Tensor  # (q,)
    ridge: Ridge
    low: float
    high: float
    held_out_error: float  # mean squared leave-one-out error per value

    def apply(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """(m, p) to records (m, q) and their expected squared errors (m,)."""
        cross = directions @ self.anchors.T + INTERCEPT
        own = directions.square().sum(1) + INTERCEPT
        records = (self.ridge.predict(cross) + self.mean).clamp(self.low, self.high)
        spread = variance(cross, own, self.ridge.inverse, self.ridge.penalty)
        return records, self.held_out_error * spread / left_out_variance(self.ridge.inverse).mean()


def fit_mapping(
    directions: Tensor,
    records: Tensor,
    *,
    low: float,
    high: float,
    judged: int | None = None,
) -> Mapping:
    """directions: (n, p) and records: (n, q) in fp64, the latter within low and high.

    The penalty is chosen by the leave-one-out error of the first `judged` rows; None: of all.
    """
    mean = records.mean(0)

    def error(held_out: Tensor) -> float:
        found = (held_out[:judged] + mean).clamp(low, high)
        return float((found - records[:judged]).square().mean())

    ridge = fit_ridge(directions @ directions.T + INTERCEPT, records - mean, error)
    return Mapping(directions, mean, ridge, low, high, error(ridge.held_out))
