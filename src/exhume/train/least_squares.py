"""Damped least squares: by the normal equations, or through two products only.

    min_x ||J x - r||^2 + damping·||x||^2

`solve_damped` has J^T J and its Cholesky factor, as a step of Levenberg-Marquardt or a ridge regression does.
`least_squares` takes conjugate gradients on the normal equations (CGLS).

Iterates are filtered solutions: directions of large singular values come first, so stopping early
regularises, and earlier iterates are steps for where the problem is less linear than hoped. Cost: one
product with J and one with its transpose an iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_EARLIER = (2, 5, 12)  # iterations after which an iterate is kept

Product = Callable[[Tensor], Tensor]


def solve_damped(gram: Tensor, right: Tensor, damping: float) -> Tensor:
    """(d, d) J^T J and (d,) or (d, e) J^T r, in fp64, to x; damping: times the mean diagonal."""
    added = (damping * gram.diagonal().mean()).clamp_min(1e-300)
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(gram + added * eye)
    solved: Tensor = torch.cholesky_solve(right.view(len(gram), -1), factor)
    return solved.view(right.shape)


@dataclass(frozen=True, eq=False)
class Solved:
    step: Tensor  # (m,)
    left: float  # ||J x - r|| / ||r||
    iterations: int
    earlier: tuple[Tensor, ...] = ()  # (m,) iterates on the way, the latest first


def least_squares(
    forward: Product,
    adjoint: Product,
    right: Tensor,
    *,
    iterations: int,
    damping: float = 0.0,
    left: float = 0.0,
    slope: float = 1e-4,
) -> Solved:
    """right: (p,). Ends once ||J x - r|| is below `left` of ||r||, or its gradient `slope` of the first."""
    residual = right.clone()
    gradient = adjoint(residual)
    step, along = torch.zeros_like(gradient), gradient.clone()
    size, first = _squared(gradient), _squared(gradient)
    whole, done, earlier = _squared(right), 0, list[Tensor]()
    while done < iterations and size > slope**2 * first:
        image = forward(along)
        length = size / (_squared(image) + damping * _squared(along))
        step, residual = step + length * along, residual - length * image
        done += 1
        if done in _EARLIER:
            earlier.insert(0, step)
        if _squared(residual) <= left**2 * whole or done == iterations:
            break
        gradient = adjoint(residual) - damping * step
        before, size = size, _squared(gradient)
        along = gradient + size / before * along
    return Solved(step, (_squared(residual) / max(whole, 1e-300)) ** 0.5, done, tuple(earlier))


def _squared(vector: Tensor) -> float:
    return float(vector.double().square().sum())
