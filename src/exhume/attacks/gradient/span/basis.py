"""The span of the records: exactly, from dL/dW; up to noise of order sqrt(d/m), from dL/da alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exhume.attacks.gradient.tensor.moments import second_on, third_on
from exhume.contract import Key, NotApplicable

__all__ = ["deflate", "deviation", "project", "span_of_moments", "span_of_slopes"]

_GAP = 3.0  # singular values drop by this factor at least after the last record; clean ones by 1e4 and more
_MOST = 256  # records: where no end of the spectrum is in sight, it is looked for up to here
_BEYOND = 1.2  # eigenvalues of T_2 over the largest that noise gives
_POWER = 4
_REFINE = 4
_EDGE = 12  # power iterations for the size of the noise


def span_of_slopes(slopes: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """(d, b) orthonormal basis of the rows of dL/dW (m, d), and its leading singular values.

    The number of columns is the batch size: nobody has to give it. Randomised, in fp64. Pixels that are zero
    throughout are left out first: pruning would otherwise make them the end of the spectrum.
    """
    rounding = _rounding(slopes)
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


def _rounding(values: Tensor) -> float:
    """Relative: of the release, which may have passed through half precision."""
    for kind in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(kind).to(values.dtype), values):
            return torch.finfo(kind).eps
    return torch.finfo(values.dtype).eps


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


_BLOCK = 1 << 12


def _times(weights: Tensor, vector: Tensor) -> Tensor:
    return torch.cat(
        [(w @ vector.to(w.dtype)).to(vector.dtype) for w in torch.split(weights, _BLOCK)]
    )


def project(weights: Tensor, basis: Tensor) -> Tensor:
    """(m, q) in fp64, by blocks."""
    return torch.cat([w.to(basis.dtype) @ basis for w in torch.split(weights, _BLOCK)])


def deviation(weights: Tensor) -> float:
    """Root mean square of all entries, by blocks."""
    total = sum(float(w.double().square().sum()) for w in torch.split(weights, _BLOCK))
    return math.sqrt(total / weights.numel())


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
        return basis[:, : _count(eigenvalues, _BEYOND * edge, largest)]
    rank = _count_by_halves(weights, values, slope, min(largest, d), key)
    basis = _third_basis(weights, values, slope, rank, key)
    for _ in range(_REFINE):
        left = torch.linalg.svd(third_on(weights, values, basis).flatten(1), full_matrices=False)[0]
        basis = left[:, :rank]
    return basis


def _third_basis(weights: Tensor, values: Tensor, slope: Tensor, columns: int, key: Key) -> Tensor:
    """(d, columns) of T_3(I, I, v), v the direction of T_1, which is what g says best."""
    along = slope / slope.norm().clamp_min(1e-300)
    contracted = values * _times(weights, along)  # T_1 has been taken out of g
    return _eigenvectors(weights, contracted - contracted.mean(), columns, key)[0]


def _count_by_halves(weights: Tensor, values: Tensor, slope: Tensor, largest: int, key: Key) -> int:
    """The batch size: a basis from one half of the neurons, T_3(I, V, V) from the other.

    A basis follows the noise of the neurons it comes from. For the others it is any basis.
    """
    half = len(weights) // 2
    basis = _third_basis(weights[:half], values[:half], slope, largest, key)
    for _ in range(_REFINE):
        left = third_on(weights[:half], values[:half], basis).flatten(1)
        basis = torch.linalg.svd(left, full_matrices=False)[0][:, :largest]
    weights, values = weights[half:], values[half:]
    sizes = torch.linalg.svdvals(third_on(weights, values, basis).flatten(1))
    return _count(sizes, _third_edge(weights, values, basis, key), largest)


def _third_edge(weights: Tensor, values: Tensor, basis: Tensor, key: Key) -> float:
    """What noise alone gives T_3(I, V, V) at most: |S|^(1/2) sqrt(d/m) + tr(S)^(1/2) / sqrt(m).

    S = E[g^2 h h^T], h = He_2 of the points: the covariance of a row, inputs outside the span being Gaussian
    and independent of g and h. Its norm is found by power iteration.
    """
    (m, d), q = weights.shape, basis.shape[1]
    points = project(weights, basis)
    square = values.square().double()
    lengths = points.square().sum(1)
    trace = float(square @ (lengths.square() - 2 * lengths + q)) / m  # |p p^T - I|^2
    along = torch.randn(q, q, dtype=torch.float64, generator=key.fold("edge").generator())
    along, norm = along + along.T, 0.0
    for _ in range(_EDGE):
        along = along / along.norm()
        inner = square * (((points @ along) * points).sum(1) - along.trace())
        along = (points.T @ (inner[:, None] * points) - inner.sum() * torch.eye(q)) / m
        norm = float(along.norm())
    return (math.sqrt(d * norm) + math.sqrt(trace)) / math.sqrt(m)


def _count(sizes: Tensor, edge: float, largest: int) -> int:
    rank = min(int((sizes.abs() > edge).sum()), largest)
    if not rank:
        raise NotApplicable(
            f"no eigenvalue of the moment stands out from noise of size {edge:.2g}: too few neurons",
            ever=True,
        )
    return rank


def _eigenvectors(weights: Tensor, values: Tensor, columns: int, key: Key) -> tuple[Tensor, Tensor]:
    """Eigenvectors of T_2, largest modulus first, by subspace iteration; T_2 is indefinite."""
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
