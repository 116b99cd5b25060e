"""The span of the records: exactly, from dL/dW; up to noise of order sqrt(d/m), from dL/da alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exhume.attacks.gradient.moments import second_on, third_on
from exhume.contract import Key, NotApplicable

__all__ = ["deflate", "span_of_moments", "span_of_slopes"]

_GAP = 3.0  # singular values drop by this factor at least after the last record; clean ones by 1e4 and more
_BEYOND = {
    2: 1.2,
    3: 2.0,
}  # values of T_p over the largest noise gives; T_3's basis follows the noise
_POWER = 4
_REFINE = 4


def span_of_slopes(slopes: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """(d, b) orthonormal basis of the rows of dL/dW (m, d), and its leading singular values.

    The number of columns is the batch size: nobody has to give it. Randomised, in fp64. Pixels that are zero
    throughout are left out first: pruning would otherwise make them the end of the spectrum.
    """
    rounding = torch.finfo(slopes.dtype).eps
    live = slopes.abs().amax(0) > 0
    matrix = slopes[:, live].double()
    least = min(matrix.shape)
    columns, rank = min(32, least), 0
    values = slopes.new_zeros(0).double()
    inner = matrix.new_zeros(matrix.shape[1], 0)
    while columns:
        inner, values = _leading(matrix, columns, key)
        rank = _rank(values, rounding)
        if (rank and 2 * rank <= columns) or columns == least:
            break
        columns = min(2 * columns, least)
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
    """Where the values drop most; what lies below the rounding of the release counts as that rounding."""
    if len(values) < 2 or not float(values[0]) > 0:
        return 0
    held = values.clamp_min(rounding * float(values[0]))
    ratios = held[:-1] / held[1:]
    return int(ratios.argmax()) + 1 if float(ratios.max()) >= _GAP else 0


def deflate(weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """g less its best fit c + w · b, and b (d,): orders 0 and 1 are noise to the higher moments.

    Conjugate gradients on the normal equations, which are m times nearly the identity.
    """
    centred = values - values.mean()
    slope = torch.zeros(weights.shape[1], dtype=values.dtype)
    residual = _transposed(weights, centred)
    direction, norm = residual.clone(), float(residual @ residual)
    start = norm
    for _ in range(20):
        if norm <= 1e-16 * start or norm == 0:
            break
        image = _times(weights, direction)
        image = _transposed(weights, image - image.mean())
        step = norm / float(direction @ image)
        slope, residual = slope + step * direction, residual - step * image
        norm, before = float(residual @ residual), norm
        direction = residual + norm / before * direction
    left = centred - _times(weights, slope)
    return left - left.mean(), slope


_BLOCK = 1 << 15


def _times(weights: Tensor, vector: Tensor) -> Tensor:
    return torch.cat(
        [(w @ vector.to(w.dtype)).to(vector.dtype) for w in torch.split(weights, _BLOCK)]
    )


def _transposed(weights: Tensor, vector: Tensor) -> Tensor:
    total = torch.zeros(weights.shape[1], dtype=vector.dtype)
    for w, v in zip(torch.split(weights, _BLOCK), torch.split(vector, _BLOCK), strict=True):
        total += v.to(w.dtype) @ w
    return total


def span_of_moments(
    weights: Tensor, values: Tensor, slope: Tensor, *, even: bool, largest: int, key: Key
) -> Tensor:
    """(d, b) from the deflated g: eigenvectors of T_2 (`even`), else of T_3 by alternating projection.

    b is the number of eigenvalues beyond what noise of this size gives, at most `largest`.
    """
    m, d = weights.shape
    size = float(values.square().sum()) / max(m - d - 1, 1)  # d + 1 were fitted by `deflate`
    if even:
        basis, eigenvalues = _eigenvectors(weights, values, min(2 * largest, d), key)
        edge = 2 * math.sqrt(d * size / m)
        return _kept(basis, eigenvalues, _BEYOND[2] * edge, largest)
    along = slope / slope.norm().clamp_min(1e-300)
    contracted = values * _times(weights, along)  # T_3(I, I, v), since T_1 has been taken out
    basis, _ = _eigenvectors(weights, contracted - contracted.mean(), min(largest, d), key)
    for _ in range(_REFINE):
        q = basis.shape[1]
        left, sizes, _ = torch.linalg.svd(
            third_on(weights, values, basis).flatten(1), full_matrices=False
        )
        edge = math.sqrt(2 * size / m) * (math.sqrt(d) + math.sqrt(q * (q + 1) / 2))
        basis = _kept(left, sizes, _BEYOND[3] * edge, largest)
    return basis


def _kept(basis: Tensor, sizes: Tensor, edge: float, largest: int) -> Tensor:
    rank = min(int((sizes.abs() > edge).sum()), largest)
    if not rank:
        raise NotApplicable(
            f"no eigenvalue of the moment stands out from noise of size {edge:.2g}: too few neurons",
            ever=True,
        )
    return basis[:, :rank]


def _eigenvectors(weights: Tensor, values: Tensor, columns: int, key: Key) -> tuple[Tensor, Tensor]:
    """Of T_2, largest modulus first, by subspace iteration; T_2 is indefinite."""
    d = weights.shape[1]
    start = torch.randn(d, columns, dtype=values.dtype, generator=key.generator())
    basis = torch.linalg.qr(start)[0]
    for _ in range(_POWER):
        basis = torch.linalg.qr(second_on(weights, values, basis))[0]
    image = second_on(weights, values, basis)
    small = basis.T @ image
    eigenvalues, inner = torch.linalg.eigh((small + small.T) / 2)
    order = eigenvalues.abs().argsort(descending=True)
    return basis @ inner[:, order], eigenvalues[order]
