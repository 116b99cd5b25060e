"""Damped least squares: by the normal equations, or through two products only.

    min_x ||J x - r||^2 + damping·||x||^2

`solve_damped` has J^T J and its Cholesky factor, as a step of Levenberg-Marquardt or a ridge regression does.
`damped_step` is that step with the damping of Marquardt, and `fit_damped` takes it to the end.
`least_squares` takes conjugate gradients on the normal equations (CGLS). `least_norm` has no damping.

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

_TRIES = 10  # dampings, each four times the one before
_FREE, _FLOOR = 1e-9, 1e-15  # of the largest entry of the diagonal, for unknowns that nothing tells
_STALLED, _PATIENCE = 1e-4, 6  # relative gain of a step that counts as none; how many end a fit

Product = Callable[[Tensor], Tensor]


def least_norm(matrix: Tensor, target: Tensor) -> Tensor:
    """(m, n), (m, k) to (n, k), of least norm where several fit; the same bits every time.

    On the CPU the default driver (gelsy) gives other last bits from call to call; this one does not.
    """
    solution: Tensor = torch.linalg.lstsq(matrix, target, driver="gelsd").solution
    return solution


def solve_damped(gram: Tensor, right: Tensor, damping: float) -> Tensor:
    """(d, d) J^T J and (d,) or (d, e) J^T r, in fp64, to x; damping: times the mean diagonal."""
    added = (damping * gram.diagonal().mean()).clamp_min(1e-300)
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(gram + added * eye)
    solved: Tensor = torch.cholesky_solve(right.view(len(gram), -1), factor)
    return solved.view(right.shape)


def damped_step(
    normal: Tensor, slope: Tensor, damping: float, cost: Callable[[Tensor], float], before: float
) -> tuple[Tensor, float, float] | None:
    """The move (m,) that lowers the cost, its cost, and the damping to go on with; None: no move does.

    normal (m, m) and slope (m,), J^T J and J^T r; cost: of a move, which is taken off the point.
    """
    diagonal = normal.diagonal()
    for _ in range(_TRIES):
        added = damping * (diagonal + _FREE * diagonal.max()) + _FLOOR * diagonal.max()
        move = torch.linalg.solve(normal + torch.diag(added), slope)
        after = cost(move)
        if after < before:
            return move, after, max(damping / 5, 1e-13)
        damping *= 4
    return None


def fit_damped(
    residual: Product, jacobian: Product, start: Tensor, *, steps: int, enough: float
) -> tuple[Tensor, float]:
    """Levenberg-Marquardt from a start (m,): where the norm of the residual (p,) is least, and that norm."""
    here, error, damping, idle = start, residual(start), 1e-3, 0
    for _ in range(steps):
        size = float(error.norm())
        if size <= enough or idle == _PATIENCE:
            break
        slopes = jacobian(here)
        step = damped_step(
            slopes.T @ slopes,
            slopes.T @ error,
            damping,
            lambda move: float(residual(here - move).norm()),  # noqa: B023
            size,
        )
        if step is None:
            break
        move, after, damping = step
        idle = idle + 1 if after > (1 - _STALLED) * size else 0
        here = here - move
        error = residual(here)
    return here, float(error.norm())


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
