"""Moments inside the span by least squares: the same limit as Stein's averages, far less noise.

Inside a span of q columns a gradient gives a function of q variables at m Gaussian points,

    F(p) = sum_i r_i sigma(p · m_i),    and with dL/dW also    grad F(p) = sum_i r_i sigma'(p · m_i) m_i.

T_p / p! are the coefficients of F in Hermite tensors. An average over the points estimates them with the
noise of all of F; a least-squares fit of the orders 0..P leaves only the noise of the orders above P, and can
use the gradients as equations too. Solved by conjugate gradients; no matrix is formed, the points are read in
blocks. Memory: q^4 numbers and a block besides the points. Cost: about 4 m q^P operations an iteration.

`polish` fits F to its values and slopes: Levenberg-Marquardt on all m_i and r_i, B^2 + B unknowns in place of
gradient matching's B d. For smooth activations a fair start ends at rounding error, and the misfit says so
without looking at any truth.

What Stein's lemma leaves of an activation is its Hermite coefficients, and they say which order is allowed.

    c_p(rho) = E[sigma(rho z) He_p(z)] = rho^p E[sigma^(p)(rho z)],   z ~ N(0, 1)       (Wang23)

multiplies the p-th power of a record's direction in the moment T_p, for a record of norm rho. Records
are identified one by one by an order of 3 or more only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from exhume.core.contract import NotApplicable
from exhume.models.activations import Activation
from exhume.train.least_squares import fit_damped, solve_damped

_ITERATIONS = 25
_BLOCK = 1 << 18  # numbers of the largest object of a block, so that it stays in the cache
_ENOUGH = 1e-6  # of the first residual: the orders above P are worth more than this
_STEPS = 60  # of `polish`
_TINY = 1e-13  # misfit at which nothing is left to gain
_PIECES = 64  # intervals of the quadrature: kinks fall on their borders, or hardly matter
_NODES = 32
_REACH = 12.0  # standard deviations
_SMALLEST = 1e-3  # of the largest coefficient: what is below cannot be told from rounding and noise
_CLEARLY = 2.0  # times larger, for its noise, is a coefficient of order 4 taken before order 3


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
    moments = [samples.points.new_zeros((q,) * k) for k in range(order + 1)]
    residual = [part.clone() for part in moments]
    for block in _blocks(samples):
        operator = _Hermite(block.points, order, with_slopes)
        _add(residual, operator.adjoint(block.values, block.slopes))
    direction = [part.clone() for part in residual]
    norm = start = _dot(residual, residual)
    for _ in range(_ITERATIONS):
        if norm <= _ENOUGH**2 * start:
            break
        image = [torch.zeros_like(part) for part in moments]
        for block in _blocks(samples):
            operator = _Hermite(block.points, order, with_slopes)
            _add(image, operator.adjoint(*operator.apply(direction)))
        step = norm / _dot(direction, image)
        moments = [f + step * d for f, d in zip(moments, direction, strict=True)]
        residual = [r - step * i for r, i in zip(residual, image, strict=True)]
        norm, before = _dot(residual, residual), norm
        direction = [r + norm / before * d for r, d in zip(residual, direction, strict=True)]
    return [part * scale for part, scale in zip(moments, _scales(order, with_slopes), strict=True)]


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
        zeroth, first = y.sum(), y @ points
        square = (y @ self.pairs).reshape(q, q)
        parts = [zeroth, first, (square - zeroth * eye) / 2]
        if self.order >= 3:
            cube = (self.pairs.T @ (y[:, None] * points)).reshape(q, q, q)
            parts.append((cube - 3 * _symmetric(first[:, None, None] * eye)) / 6)
        if self.order >= 4:
            fourth = (self.pairs.T @ (y[:, None] * self.pairs)).reshape((q,) * 4)
            mixed = square[:, :, None, None] * eye
            double = eye[:, :, None, None] * eye
            parts.append((fourth - 6 * _symmetric(mixed) + 3 * zeroth * _symmetric(double)) / 24)
        return parts[: self.order + 1]

    def _of_slopes(self, y: Tensor) -> list[Tensor]:
        points, q = self.points, self.points.shape[1]
        eye = torch.eye(q, dtype=points.dtype)
        first, square = y.sum(0), y.T @ points
        parts = [points.new_zeros(()), first, _symmetric(square)]
        if self.order >= 3:
            cube = (y.T @ self.pairs).reshape(q, q, q) - first[:, None, None] * eye
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


@dataclass(frozen=True, eq=False)
class SampleFit:
    records: Tensor  # (b, q) m_i
    strengths: Tensor  # (b,) r_i
    misfit: float  # norm of the residual over that of the observation


def polish(
    activation: Activation, samples: Samples, records: Tensor, steps: int = _STEPS
) -> SampleFit:
    """Move a start (b, q) to the nearest best fit. Strengths start at their least-squares values."""
    model = _Model(activation, samples)

    def parts(point: Tensor) -> tuple[Tensor, Tensor]:
        return point[: records.numel()].reshape(records.shape), point[records.numel() :]

    point, left = fit_damped(
        lambda here: model.residual(*parts(here)),
        lambda here: model.jacobian(*parts(here)),
        torch.cat([records.flatten(), best_strengths(activation, samples, records)]),
        steps=steps,
        enough=_TINY * model.size,
    )
    return SampleFit(*parts(point), left / model.size)


def best_strengths(activation: Activation, samples: Samples, records: Tensor) -> Tensor:
    """(b,) r: linear least squares for given records."""
    z = samples.points @ records.T
    columns = activation.apply(z)
    target = samples.values
    if samples.slopes is not None:
        gates = activation.slope(z, columns)
        steep = gates[:, None, :] * records.T  # (m, q, b)
        columns = torch.cat([columns, steep.flatten(0, 1)])
        target = torch.cat([target, samples.slopes.flatten()])
    return solve_damped(columns.T @ columns, columns.T @ target, 1e-12)


class _Model:
    """Residual and Jacobian; rows are values, then slopes."""

    def __init__(self, activation: Activation, samples: Samples) -> None:
        self.activation, self.samples = activation, samples
        size = samples.values.square().sum()
        if samples.slopes is not None:
            size = size + samples.slopes.square().sum()
        self.size = float(size.sqrt())

    def residual(self, records: Tensor, strengths: Tensor) -> Tensor:
        z = self.samples.points @ records.T
        height = self.activation.apply(z)
        parts = [height @ strengths - self.samples.values]
        if self.samples.slopes is not None:
            gates = self.activation.slope(z, height) * strengths
            parts.append((gates @ records - self.samples.slopes).flatten())
        return torch.cat(parts)

    def jacobian(self, records: Tensor, strengths: Tensor) -> Tensor:
        points = self.samples.points
        z = points @ records.T
        height = self.activation.apply(z)
        gates = self.activation.slope(z, height)
        m, (b, q) = len(points), records.shape
        over_records = (strengths * gates)[:, :, None] * points[:, None, :]
        parts = [torch.cat([over_records.flatten(1), height], 1)]
        if self.samples.slopes is not None:
            step = 1e-5  # of a central difference: exact enough for a Jacobian
            up, down = (
                self.activation.slope(there, self.activation.apply(there))
                for there in (z + step, z - step)
            )
            bends = strengths * (up - down) / (2 * step)
            # d slope_a / d m_ic = r_i (sigma'' p_c m_ia + sigma' [a = c])
            outer = bends[:, :, None] * points[:, None, :]  # (m, b, q)
            steep = outer[:, None] * records.T[None, :, :, None]  # (m, q, b, q)
            steep.diagonal(dim1=1, dim2=3).add_((gates * strengths)[:, :, None])
            over_strengths = gates[:, None, :] * records.T
            parts.append(torch.cat([steep.reshape(m * q, b * q), over_strengths.flatten(0, 1)], 1))
        return torch.cat(parts)


def coefficients(activation: Activation, norm: float = 1.0, highest: int = 4) -> tuple[float, ...]:
    """(c_0, ..., c_highest) by Gauss-Legendre quadrature in pieces."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    edges = np.linspace(-_REACH, _REACH, _PIECES + 1)
    half = (edges[1:] - edges[:-1]) / 2
    z = (half[:, None] * nodes + (edges[1:] + edges[:-1])[:, None] / 2).ravel()
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (half[:, None] * weights).ravel()
    values = activation.apply(torch.from_numpy(norm * z)).numpy() * density
    c, before, here = [], np.zeros_like(z), np.ones_like(z)
    for order in range(highest + 1):
        c.append(float(values @ here))
        before, here = here, z * here - order * before  # He_{n+1} = z He_n - n He_{n-1}
    return tuple(c)


def order_for(activation: Activation, norm: float = 1.0) -> int:
    """3 or 4: the order whose moment identifies the records best.

    Raises `NotApplicable`, naming what can be identified, if both vanish.
    """
    c = coefficients(activation, norm)
    bar = _SMALLEST * max(abs(value) for value in c)
    usable = [p for p in (3, 4) if abs(c[p]) > bar]
    if usable:
        # A component of T_p has noise of about sqrt(p!), whatever the activation. A higher order has more
        # unknowns besides: take it only where its coefficient is clearly the larger one.
        sizes = {p: abs(c[p]) / math.sqrt(math.factorial(p)) for p in usable}
        return 4 if sizes.get(4, 0.0) > _CLEARLY * sizes.get(3, 0.0) else 3
    left = "only the moment of order 1 is left", "one linear combination"
    if abs(c[2]) > bar:
        left = "the moments of order 3 and 4 vanish", "the span"
    raise NotApplicable(
        f"{activation.name}: {left[0]}, so the gradient identifies {left[1]} of the records and no single "
        "record",
        ever=False,
    )
