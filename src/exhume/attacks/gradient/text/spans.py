"""The span of a linear layer's gradient: which vectors it may have seen.

    dL/dW = sum_t delta_t x_t^T

Every row is a sum of the vectors x_t, so that these span the rows while they are fewer than the layer's
width. What lies outside was not seen. The rank is read off the spectrum: of the gradient, every row at norm
1, since rounding is relative to a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Span", "precision_of", "span_of"]

_NOISE = 2.0  # roundings, over the largest singular value: what lies below is rounding
_SPARE = 4  # directions that must be left over: norms take away one or two
_GAP = 8.0  # ratio of neighbouring singular values that separates vectors from noise
_WIDEST = 0.1  # of the tolerance, with such noise
_LEAST, _MOST = 3e-5, 3e-3  # of the tolerance, in single precision
_COARSE = (5.0, 20.0)  # the same in roundings, where values are coarser


@dataclass(frozen=True, eq=False)
class Span:
    basis: Tensor  # (d, r)
    tolerance: float  # relative distance up to which a vector counts as inside

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    def outside(self, vectors: Tensor) -> Tensor:
        """(..., d) to (...): relative distance, over the tolerance: up to 1 is inside."""
        basis = self.basis.to(vectors.dtype)
        left = vectors - (vectors @ basis) @ basis.T
        sizes = vectors.norm(dim=-1).clamp_min(1e-30)
        found: Tensor = left.norm(dim=-1) / sizes / self.tolerance
        return found


def span_of(slopes: Sequence[Tensor]) -> Span | None:
    """(m, d) gradients by weights that see the same; None: they tell nothing, or not everything.

    Nothing where the vectors fill the whole width; not everything where there are fewer rows than vectors.
    """
    rows = torch.cat([slope.double() for slope in slopes])
    sizes = rows.norm(dim=1)
    rows = rows[sizes > 0]
    if not len(rows):
        return None
    rounding = max(precision_of(slope) for slope in slopes)
    found = _cut(rows / sizes[sizes > 0, None], rounding)
    return found if found is not None else _cut(rows, rounding, gap=_GAP)


def _cut(rows: Tensor, rounding: float, gap: float = 0.0) -> Span | None:
    """The span of the singular values above rounding; gap: above the largest gap, if it is so large.

    The difference of two states has an error of its own, the same in every row.
    """
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    most = min(rows.shape) - _SPARE
    if most < 1:
        return None
    floor = _NOISE * rounding * float(values[0])
    rank = int((values > floor).sum())
    if gap:
        ratios = values[:most] / values[1 : most + 1].clamp_min(floor)
        rank = int(ratios.argmax()) + 1
        if float(ratios.max()) < gap:
            return None
    if not 0 < rank <= most:
        return None
    noise = max(float(values[rank]), rounding * float(values[0]) / 4)
    tolerance = noise / float(values[rank - 1])  # what noise turns the weakest vector by
    least, widest = max(_LEAST, _COARSE[0] * rounding), max(_MOST, _COARSE[1] * rounding)
    if gap:
        widest = _WIDEST
    return Span(right[:rank].T.contiguous(), min(widest, max(least, tolerance)))


def precision_of(values: Tensor) -> float:
    """Relative rounding: coarser where the values have passed through half precision."""
    for kind in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(kind).to(values.dtype), values):
            return torch.finfo(kind).eps
    return torch.finfo(values.dtype).eps
