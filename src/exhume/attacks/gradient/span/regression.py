"""Moments inside the span by least squares: the same limit as Stein's averages, far less noise.

Inside a span of q columns a gradient gives a function of q variables at m Gaussian points,

    F(p) = sum_i r_i sigma(p · m_i),    and with dL/dW also    grad F(p) = sum_i r_i sigma'(p · m_i) m_i.

T_p / p! are the coefficients of F in Hermite tensors. An average over the points estimates them with the
noise of all of F; a least-squares fit of the orders 0..P leaves only the noise of the orders above P, and
can use the gradients as equations too. Solved by conjugate gradients; no matrix is formed.

The points are read in blocks. Memory: q^4 numbers and a block besides the points. Cost: about 4 m q^P
operations an iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

__all__ = ["Samples", "fit_moments"]

_ITERATIONS = 25
_BLOCK = 1 << 18  # numbers of the largest object of a block, so that it stays in the cache
_ENOUGH = 1e-6  # of the first residual: the orders above P are worth more than this


@dataclass(frozen=True, eq=False)
class Samples:
    """A function of q variables, seen at m points."""

    points: Tensor  # (m, q)
    values: Tensor  # (m,)
    slopes: Tensor | None = None  # (m, q) its gradient there

    def rows(self, index: slice | Tensor) -> Samples:
        slopes = None if self.slopes is None else self.slopes[index]
        return Samples(self.points[index], self.values[index], slopes)


def fit_moments(samples: Samples, order: int) -> list[Tensor]:
    """T_0 ... T_order, symmetric tensors of q, that fit values and slopes best."""
    q, with_slopes = samples.points.shape[1], samples.slopes is not None
    found = [samples.points.new_zeros((q,) * k) for k in range(order + 1)]
    residual = [part.clone() for part in found]
    for block in _blocks(samples):
        operator = _Hermite(block.points, order, with_slopes)
        _add(residual, operator.adjoint(block.values, block.slopes))
    direction = [part.clone() for part in residual]
    norm = start = _dot(residual, residual)
    for _ in range(_ITERATIONS):
        if norm <= _ENOUGH**2 * start:
            break
        image = [torch.zeros_like(part) for part in found]
        for block in _blocks(samples):
            operator = _Hermite(block.points, order, with_slopes)
            _add(image, operator.adjoint(*operator.apply(direction)))
        step = norm / _dot(direction, image)
        found = [f + step * d for f, d in zip(found, direction, strict=True)]
        residual = [r - step * i for r, i in zip(residual, image, strict=True)]
        norm, before = _dot(residual, residual), norm
        direction = [r + norm / before * d for r, d in zip(residual, direction, strict=True)]
    return [part * scale for part, scale in zip(found, _scales(order, with_slopes), strict=True)]


def _blocks(samples: Samples) -> Iterator[Samples]:
    m, q = samples.points.shape
    rows = max(_BLOCK // (q * q), q * q)  # symmetrising q^4 numbers a block must not dominate
    for start in range(0, m, rows):
        yield samples.rows(slice(start, start + rows))


def _add(total: list[Tensor], parts: Sequence[Tensor]) -> None:
    for whole, part in zip(total, parts, strict=True):
        whole.add_(part)


def _scales(order: int, with_slopes: bool) -> list[float]:
    return [math.sqrt(math.factorial(k) / (1 + k * with_slopes)) for k in range(order + 1)]


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return float(sum((a * b).sum() for a, b in zip(left, right, strict=True)))


class _Hermite:
    """Tensors to the function's values and slopes, and the adjoint of that map.

    Order k is scaled so that its columns have unit norm for Gaussian points: conjugate gradients then
    need few iterations.
    """

    def __init__(self, points: Tensor, order: int, with_slopes: bool) -> None:
        self.points, self.order, self.with_slopes = points, order, with_slopes
        self.pairs = (points[:, :, None] * points[:, None, :]).flatten(1)
        self.scales = _scales(order, with_slopes)

    def apply(self, scaled: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        # F = sum_k <T_k, He_k(p)> / k!,  grad F = sum_k <T_k, He_{k-1}(p)> / (k-1)!
        points, q = self.points, self.points.shape[1]
        t = [part * scale for part, scale in zip(scaled, self.scales, strict=True)]
        linear = t[2] if self.order >= 2 else points.new_zeros(q, q)
        slopes = t[1] + points @ linear
        values = t[0] + points @ t[1] + ((points @ linear) * points).sum(1) / 2 - linear.trace() / 2
        if self.order >= 3:
            trace = torch.einsum("abb->a", t[3])
            quadratic = self.pairs @ t[3].reshape(q * q, q)  # T_3(., p, p)
            slopes = slopes + (quadratic - trace) / 2
            values = values + ((quadratic - 3 * trace) * points).sum(1) / 6
        if self.order >= 4:
            trace = torch.einsum("abcc->ab", t[4])
            inner = (self.pairs @ t[4].reshape(q * q, q * q)).reshape(-1, q, q)
            cubic = (inner @ points[:, :, None])[:, :, 0]
            once = points @ trace
            slopes = slopes + (cubic - 3 * once) / 6
            values = values + ((cubic - 6 * once) * points).sum(1) / 24 + trace.trace() / 8
        return values, slopes if self.with_slopes else None

    def adjoint(self, values: Tensor, slopes: Tensor | None) -> list[Tensor]:
        parts = self._of_values(values)
        if slopes is not None:
            parts = [a + b for a, b in zip(parts, self._of_slopes(slopes), strict=True)]
        return [part * scale for part, scale in zip(parts, self.scales, strict=True)]

    def _of_values(self, y: Tensor) -> list[Tensor]:
        points, q = self.points, self.points.shape[1]
        eye = torch.eye(q, dtype=points.dtype)
        zero, one = y.sum(), y @ points
        square = (y @ self.pairs).reshape(q, q)
        parts = [zero, one, (square - zero * eye) / 2]
        if self.order >= 3:
            cube = (self.pairs.T @ (y[:, None] * points)).reshape(q, q, q)
            parts.append((cube - 3 * _symmetric(one[:, None, None] * eye)) / 6)
        if self.order >= 4:
            fourth = (self.pairs.T @ (y[:, None] * self.pairs)).reshape((q,) * 4)
            mixed = square[:, :, None, None] * eye
            double = eye[:, :, None, None] * eye
            parts.append((fourth - 6 * _symmetric(mixed) + 3 * zero * _symmetric(double)) / 24)
        return parts[: self.order + 1]

    def _of_slopes(self, y: Tensor) -> list[Tensor]:
        points, q = self.points, self.points.shape[1]
        eye = torch.eye(q, dtype=points.dtype)
        one, square = y.sum(0), y.T @ points
        parts = [points.new_zeros(()), one, _symmetric(square)]
        if self.order >= 3:
            cube = (y.T @ self.pairs).reshape(q, q, q) - one[:, None, None] * eye
            parts.append(_symmetric(cube) / 2)
        if self.order >= 4:
            outer = (y[:, :, None] * points[:, None, :]).flatten(1)
            fourth = (outer.T @ self.pairs).reshape((q,) * 4)
            parts.append(_symmetric(fourth - 3 * square[:, :, None, None] * eye) / 6)
        return parts[: self.order + 1]


def _symmetric(tensor: Tensor) -> Tensor:
    """The mean over all orders of the axes."""
    orders = list(permutations(range(tensor.ndim)))
    total = torch.zeros_like(tensor)
    for order in orders:
        total += tensor.permute(order)
    return total / len(orders)
