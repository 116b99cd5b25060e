"""Least squares that some equations may fail: Levenberg and Marquardt, the cost of Geman and McClure.

Networks with gates are smooth but for jumps: an equation on the wrong side of one is an outlier until the
unknowns are right.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vmap

__all__ = ["EXACT", "robust_fit"]

EXACT = 3e-6  # misfit at which rounding is all that is left
_STEPS = 40  # of Levenberg and Marquardt, in each stage
_TRIES = 8  # dampings
_STALLED, _PATIENCE = 1e-4, 3  # relative gain of a step that counts as none; how many end a stage


def robust_fit(
    misfit: Callable[[Tensor], Tensor], start: Tensor, groups: Tensor, pull: Tensor
) -> Tensor:
    """Levenberg and Marquardt on sum_j m_j^2 / (m_j^2 + s^2) + sum pull (at - start)^2 / s^2."""
    here, error = start, misfit(start)
    damping, idle = 1e-3, 0
    every = torch.eye(len(start), dtype=start.dtype)
    for _ in range(_STEPS):
        if float(error.norm()) < EXACT or idle == _PATIENCE:
            break
        jacobian = vmap(lambda along: jvp(misfit, (here,), (along,))[1], chunk_size=64)(every)  # noqa: B023
        sizes = _sizes(error, groups)
        scale = 2 * sizes.median().clamp_min(1e-12)
        weight = (1 / (1 + (sizes / scale).square()).square())[groups]
        normal = (jacobian * weight) @ jacobian.T + torch.diag(pull)
        slope = jacobian @ (weight * error) + pull * (here - start)

        def cost(point: Tensor, left: Tensor, scale: Tensor = scale) -> float:
            square = (_sizes(left, groups) / scale).square()
            return float(
                (square / (1 + square)).sum()
                + (pull * (point - start).square()).sum() / scale.square()
            )

        before = cost(here, error)
        for _ in range(_TRIES):
            diagonal = normal.diagonal()
            added = damping * (diagonal + 1e-9 * diagonal.max())
            there = here - torch.linalg.solve(normal + torch.diag(added), slope)
            left = misfit(there)
            after = cost(there, left)
            if after < before:
                break
            damping *= 4
        else:
            break
        damping = max(damping / 5, 1e-12)
        idle = idle + 1 if after > (1 - _STALLED) * before else 0
        here, error = there, left
    return here


def _sizes(error: Tensor, groups: Tensor) -> Tensor:
    """(g,) norms of the groups' parts."""
    total = error.new_zeros(int(groups.max()) + 1).index_add(0, groups, error.square())
    sizes: Tensor = total.sqrt()
    return sizes
