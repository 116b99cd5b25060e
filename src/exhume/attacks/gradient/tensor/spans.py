"""The span of the records from dL/da alone, up to noise of order sqrt(d/m), of one output or of several."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exhume.attacks.gradient.tensor.moments import second_on, third_on
from exhume.attacks.gradient.tensor.rows import BLOCK, Rows, blocks
from exhume.core.contract import Key, NotApplicable

__all__ = ["deflate", "deviation", "project", "span_of_joint_moments", "span_of_moments"]

_BEYOND = 1.2  # eigenvalues of T_2 over the largest that noise gives
_POWER = 4
_REFINE = 4
_EDGE = 12  # power iterations for the size of the noise


def deflate(weights: Rows, values: Tensor) -> tuple[Tensor, Tensor]:
    """g less its best fit c + w · b, and b (d,): orders 0 and 1 are noise to the higher moments.

    Conjugate gradients on the normal equations, which are m times nearly the identity.
    """
    centred = values - values.mean()
    slope = torch.zeros(weights.shape[1], dtype=values.dtype)
    residual, columns = _transposed(weights, torch.stack([centred, torch.ones_like(centred)]))
    direction, norm = residual.clone(), float(residual @ residual)
    start = norm
    for _ in range(20):
        if norm <= 1e-16 * start or norm == 0:
            break
        image = _normal(weights, direction, columns)
        step = norm / float(direction @ image)
        slope, residual = slope + step * direction, residual - step * image
        norm, before = float(residual @ residual), norm
        direction = residual + norm / before * direction
    left = centred - _times(weights, slope)
    return left - left.mean(), slope


def _times(weights: Rows, vector: Tensor) -> Tensor:
    return torch.cat([(w @ vector.to(w.dtype)).to(vector.dtype) for w in blocks(weights)])


def project(weights: Rows, basis: Tensor) -> Tensor:
    """(m, q) in fp64, by blocks."""
    return torch.cat([w.to(basis.dtype) @ basis for w in blocks(weights)])


def deviation(weights: Rows) -> float:
    """Root mean square of all entries, by blocks."""
    total = sum(float(w.double().square().sum()) for w in blocks(weights))
    return math.sqrt(total / math.prod(weights.shape))


def _transposed(weights: Rows, vectors: Tensor) -> Tensor:
    """(k, m) to (k, d)."""
    total = torch.zeros(len(vectors), weights.shape[1], dtype=vectors.dtype)
    for w, v in zip(blocks(weights), torch.split(vectors, BLOCK, 1), strict=True):
        total += v.to(w.dtype) @ w
    return total


def _normal(weights: Rows, vector: Tensor, columns: Tensor) -> Tensor:
    """W^T (W v - its mean), in one pass; columns: W^T 1."""
    total, mean = torch.zeros_like(vector), 0.0
    for w in blocks(weights):
        height = w @ vector.to(w.dtype)
        total += height @ w
        mean += float(height.double().sum()) / len(weights)
    return total - mean * columns


def span_of_moments(
    weights: Rows, values: Tensor, slope: Tensor, *, even: bool, largest: int, key: Key
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


def _third_basis(weights: Rows, values: Tensor, slope: Tensor, columns: int, key: Key) -> Tensor:
    """(d, columns) of T_3(I, I, v), v the direction of T_1, which is what g says best."""
    along = slope / slope.norm().clamp_min(1e-300)
    contracted = values * _times(weights, along)  # T_1 has been taken out of g
    return _eigenvectors(weights, contracted - contracted.mean(), columns, key)[0]


def _count_by_halves(weights: Rows, values: Tensor, slope: Tensor, largest: int, key: Key) -> int:
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
    return _count(sizes, _third_edge(weights, values[None], basis, key), largest)


def _third_edge(weights: Rows, values: Tensor, basis: Tensor, key: Key) -> float:
    """What noise alone gives T_3(I, V, V) at most: |S|^(1/2) sqrt(d/m) + tr(S)^(1/2) / sqrt(m).

    Of outputs (c, m) side by side, which are uncorrelated, the largest |S| and the sum of the traces.
    """
    m, d = weights.shape
    rows = [_third_row(weights, each, basis, key) for each in values]
    norm, trace = max(norm for norm, _ in rows), sum(trace for _, trace in rows)
    return (math.sqrt(d * norm) + math.sqrt(trace)) / math.sqrt(m)


def _third_row(weights: Rows, values: Tensor, basis: Tensor, key: Key) -> tuple[float, float]:
    """|S| and tr(S).

    S = E[g^2 h h^T], h = He_2 of the points: the covariance of a row, inputs outside the span being Gaussian
    and independent of g and h. Its norm is found by power iteration.
    """
    m, q = len(weights), basis.shape[1]
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
    return norm, trace


def _count(sizes: Tensor, edge: float, largest: int) -> int:
    rank = min(int((sizes.abs() > edge).sum()), largest)
    if not rank:
        raise NotApplicable(
            f"no eigenvalue of the moment stands out from noise of size {edge:.2g}: too few neurons",
            ever=True,
        )
    return rank


def _eigenvectors(weights: Rows, values: Tensor, columns: int, key: Key) -> tuple[Tensor, Tensor]:
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


# Several outputs, each a function of the same records


def span_of_joint_moments(
    weights: Rows, values: Tensor, slopes: Tensor, *, even: bool, largest: int, key: Key
) -> Tensor:
    """(d, b) of all outputs' moments side by side; values (c, m) and slopes (c, d) of `deflate`.

    The outputs must be uncorrelated, so that their noise adds up in squares.
    """
    m, d = weights.shape
    if even:
        basis, sizes = _joint_eigenvectors(weights, values, min(2 * largest, d), key)
        noise = values.square().sum(1) * d / max(m - d - 1, 1) / m
        edge = float(noise.max().sqrt() + noise.sum().sqrt())
        return basis[:, : _count(sizes, _BEYOND * edge, largest)]
    half = m // 2
    first, rest = (weights[:half], values[:, :half]), (weights[half:], values[:, half:])
    columns = min(largest, d)
    basis = _refined(*first, _joint_start(*first, slopes, columns, key), columns)
    sizes = torch.linalg.svdvals(_side_by_side(*rest, basis))
    rank = _count(sizes, _third_edge(*rest, basis, key), columns)
    return _refined(weights, values, _joint_start(weights, values, slopes, rank, key), rank)


def _joint_start(weights: Rows, values: Tensor, slopes: Tensor, columns: int, key: Key) -> Tensor:
    """As `_third_basis`, each output contracted with its own T_1."""
    along = slopes / slopes.norm(dim=1, keepdim=True).clamp_min(1e-300)
    contracted = torch.stack(
        [each * _times(weights, unit) for each, unit in zip(values, along, strict=True)]
    )
    centred = contracted - contracted.mean(1, keepdim=True)
    return _joint_eigenvectors(weights, centred, columns, key)[0]


def _refined(weights: Rows, values: Tensor, basis: Tensor, columns: int) -> Tensor:
    for _ in range(_REFINE):
        left = torch.linalg.svd(_side_by_side(weights, values, basis), full_matrices=False)[0]
        basis = left[:, :columns]
    return basis


def _side_by_side(weights: Rows, values: Tensor, basis: Tensor) -> Tensor:
    """(d, c q q) T_3(I, V, V) of all outputs."""
    return torch.cat([third_on(weights, each, basis).flatten(1) for each in values], 1)


def _joint_eigenvectors(
    weights: Rows, values: Tensor, columns: int, key: Key
) -> tuple[Tensor, Tensor]:
    """Of sum_k T_2^2, and the roots of its eigenvalues, largest first."""
    start = torch.randn(weights.shape[1], columns, dtype=values.dtype, generator=key.generator())
    basis = torch.linalg.qr(start)[0]
    for _ in range(_POWER):
        images = [second_on(weights, each, basis) for each in values]
        pairs = zip(values, images, strict=True)
        basis = torch.linalg.qr(sum(second_on(weights, g, image) for g, image in pairs))[0]
    images = [second_on(weights, each, basis) for each in values]
    eigenvalues, inner = torch.linalg.eigh(sum(image.T @ image for image in images))
    return basis @ inner.flip(1), eigenvalues.flip(0).clamp_min(0).sqrt()
