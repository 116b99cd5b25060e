"""The span of the records, exactly, from dL/dW. (From dL/da alone, up to noise: `tensor/spans.py`.)"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import Key, NotApplicable
from exhume.train.precision import half_precision

__all__ = ["span_of_slopes"]

_GAP = 3.0  # singular values drop by this factor at least after the last record; clean ones by 1e4 and more
_MOST = 256  # records: where no end of the spectrum is in sight, it is looked for up to here


def span_of_slopes(slopes: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """(d, b) orthonormal basis of the rows of dL/dW (m, d), and its leading singular values.

    The number of columns is the batch size: nobody has to give it. Randomised, in fp64. Pixels that are zero
    throughout are left out first: pruning would otherwise make them the end of the spectrum.
    """
    rounding = half_precision(slopes) or torch.finfo(slopes.dtype).eps
    live = slopes.abs().amax(0) > 0
    matrix = slopes[:, live].double()
    most = min(_MOST, *matrix.shape)
    if not most:
        raise NotApplicable("dL/dW has no gap between zeros: there is no gradient", ever=False)
    columns = min(32, most)
    inner, values = _leading(matrix, columns, key)
    while columns < most and float(values[-1]) > 2 * rounding * float(values[0]):
        columns = min(2 * columns, most)  # the end of the spectrum is not in sight
        inner, values = _leading(matrix, columns, key)
    rank = _rank(values, rounding)
    if not rank:
        raise NotApplicable(
            "the singular values of dL/dW have no gap: noise or pruning hides the span", ever=True
        )
    basis = matrix.new_zeros(slopes.shape[1], rank)
    basis[live] = inner[:, :rank]
    return basis, values


def _leading(matrix: Tensor, columns: int, key: Key) -> tuple[Tensor, Tensor]:
    sketch = torch.randn(len(matrix), columns, dtype=matrix.dtype, generator=key.generator())
    basis = torch.linalg.qr(matrix.T @ sketch)[0]
    for _ in range(2):
        basis = torch.linalg.qr(matrix.T @ (matrix @ basis))[0]
    _, values, rows = torch.linalg.svd(matrix @ basis, full_matrices=False)
    return basis @ rows.T, values


def _rank(values: Tensor, rounding: float) -> int:
    """Where the values drop for the last time; what lies below the rounding of the release counts as that.

    Images lie close to each other, so the first drop can be the largest. If nothing is as small as rounding,
    the release is noisy or pruned, and drops in the second half are those of nearly dead pixels.
    """
    if len(values) < 2 or not float(values[0]) > 0:
        return 0
    floor = rounding * float(values[0])
    held = values.clamp_min(floor)
    drops = held[:-1] / held[1:] >= _GAP
    if float(values[-1]) > 2 * floor:
        drops = drops[: len(values) // 2]
    places = drops.nonzero()[:, 0]
    return int(places[-1]) + 1 if len(places) else 0
