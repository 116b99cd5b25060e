"""Kernel ridge regression with its leave-one-out error in closed form: pure functions, fp64.

For targets Y (n, q), a kernel K (n, n) and a penalty lam, with C = (K + lam I)^-1 and A = C Y:
prediction at x: k(x)^T A;  leave-one-out residual of row i: A_i / C_ii.
One eigendecomposition serves every penalty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "INTERCEPT",
    "PENALTIES",
    "Mapping",
    "Ridge",
    "fit_mapping",
    "fit_ridge",
    "gaussian_kernel",
    "left_out_variance",
    "variance",
]

PENALTIES = tuple(10.0 ** (exponent / 2) for exponent in range(-14, 3))
"""Times the kernel's mean eigenvalue: from almost interpolation to almost the mean."""


INTERCEPT = 10.0
"""Added to the linear kernel of unit vectors: an intercept that is hardly penalised."""


def variance(cross: Tensor, own: Tensor, inverse: Tensor, penalty: float) -> Tensor:
    """(m,) predictive variance in units of the penalty: cross (m, n), own (m,), inverse C (n, n)."""
    return (own - ((cross @ inverse) * cross).sum(1)).clamp_min(0) + penalty


def left_out_variance(inverse: Tensor) -> Tensor:
    """(n,) the same for the fitted points, each left out: 1 / C_ii."""
    return 1 / inverse.diagonal()


@dataclass(frozen=True, eq=False)
class Ridge:
    dual: Tensor  # (n, q): A
    inverse: Tensor  # (n, n): C, for the predictive variance
    penalty: float
    held_out: Tensor  # (n, q) leave-one-out predictions

    def predict(self, cross: Tensor) -> Tensor:
        """cross: (m, n) kernel between new points and the fitted ones; returns (m, q)."""
        return cross @ self.dual


def fit_ridge(kernel: Tensor, targets: Tensor, loss: Callable[[Tensor], float]) -> Ridge:
    """Choose the penalty by the loss of the leave-one-out predictions (n, q), smallest wins."""
    values, vectors = torch.linalg.eigh(kernel)
    values = values.clamp_min(0)
    rotated = vectors.T @ targets
    squared = vectors.square()
    best: tuple[float, float, Tensor, Tensor] | None = None
    for factor in PENALTIES:
        penalty = factor * max(float(values.mean()), torch.finfo(kernel.dtype).tiny)
        inverse = 1 / (values + penalty)
        dual = vectors @ (rotated * inverse[:, None])
        held_out = targets - dual / (squared @ inverse)[:, None]
        error = loss(held_out)
        if best is None or error < best[0]:
            best = (error, penalty, dual, held_out)
    assert best is not None  # PENALTIES is not empty
    _, penalty, dual, held_out = best
    inverse_matrix = (vectors / (values + penalty)) @ vectors.T
    return Ridge(dual, inverse_matrix, penalty, held_out)


def gaussian_kernel(left: Tensor, right: Tensor, width: float) -> Tensor:
    """exp(-|a - b|^2 / width): (m, f), (n, f) to (m, n)."""
    squared = (
        left.square().sum(1)[:, None] + right.square().sum(1)[None] - 2 * left @ right.T
    ).clamp_min_(0)
    return squared.div_(-width).exp_()


@dataclass(frozen=True, eq=False)
class Mapping:
    """A map from directions to records, with their expected errors."""

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
