"""The row space of a layer that weight decay has emptied of its start, with the noise of each direction.

    W = sum_i s_i a_iᵀ = U diag(s) V,      w_j = e² / (s_j² + e²)

What entered the layer, a_i, drifts while training, and decay forgets where it was: the sum has a tail whose
singular values s_j fall without a gap, and what training records have along v_j falls with s_j. So every
direction is weighted by the noise that is there, down to the floor e that rounding or the start makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.margin.reading import noise_edge
from exhume.core.contract import NotApplicable

__all__ = ["Rows", "orthonormal", "row_space", "without"]

_LEFT = 1e-3  # share of a layer's square that may lie outside its leading directions


@dataclass(frozen=True, eq=False)
class Rows:
    """Directions above the floor, and how much of each counts as outside."""

    basis: Tensor  # (q, k) orthonormal, leading first
    damped: Tensor  # (q,) 1 - sqrt(w_j); 0 for all other directions
    values: Tensor  # (min(k, outputs),) all singular values of the layer, falling

    def outside(self, vectors: Tensor) -> Tensor:
        """(m, k) vectors, each component v_j times sqrt(w_j)."""
        return torch.addmm(vectors, (vectors @ self.basis.T) * self.damped, self.basis, alpha=-1)


def row_space(matrix: Tensor, directions: int | Callable[[Tensor], int], name: str) -> Rows:
    """Read a layer (outputs, inputs); refuses one with too much outside its directions: its start.

    directions: how many, or how many by its singular values.
    """
    _, values, rows = torch.linalg.svd(matrix.double(), full_matrices=False)
    count = directions if isinstance(directions, int) else directions(values)
    left = float(values[count:].square().sum() / values.square().sum())
    if count >= len(values) or left > _LEFT:
        raise NotApplicable(
            f"{name}: {left:.1%} of its square lies outside {count} directions, so it keeps its random "
            "start, which weight decay would have removed",
            ever=False,
        )
    tail = len(values) // 2 > count  # then the median is noise: the start's, or rounding
    aspect = min(matrix.shape) / max(matrix.shape)
    floor = noise_edge(values, aspect) if tail else float(values[count])
    kept = int((values > floor).sum())
    damped = 1 - floor / (values[:kept].square() + floor**2).sqrt()
    return Rows(rows[:kept].to(matrix), damped.to(matrix), values)


def without(vectors: Tensor, rows: Tensor) -> Tensor:
    """(m, k) less its part in the span of orthonormal rows."""
    return torch.addmm(vectors, vectors @ rows.T, rows, alpha=-1)


def orthonormal(rows: Tensor) -> Tensor:
    """(r, k) to rows of the same span."""
    basis: Tensor = torch.linalg.qr(rows.double().T)[0].T.to(rows)
    return basis
