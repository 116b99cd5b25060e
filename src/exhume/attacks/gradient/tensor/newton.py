"""The best fit of a symmetric tensor by rank-one terms: Levenberg-Marquardt on all factors at once.

    min_A || T - sum_i s_i a_i^{(p)} ||^2,     s_i = ±1 (p = 4; a sign is absorbed by a_i for p = 3)

The normal matrix has the closed form p s_i s_j [(a_i · a_j)^(p-1) I + (p-1) (a_i · a_j)^(p-2) a_j a_i^T]. A
step costs one contraction of T and a solve of B^2 unknowns. Alternating least squares with tied factors need
not decrease the misfit and can end beside its minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["refine_terms"]

_STEPS = 40
_STALLED = 1e-6  # relative gain of a step that counts as none


def refine_terms(
    tensor: Tensor, directions: Tensor, weights: Tensor, apply: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """(b, q) unit rows near a start; `apply`(T, u) is T(., u, ..., u), (b, q)."""
    p, (b, q) = tensor.ndim, directions.shape
    signs = torch.where(weights < 0, -1.0, 1.0).to(tensor)
    factors = directions * (weights.abs() ** (1 / p))[:, None]
    if p % 2:
        factors, signs = factors * signs[:, None], torch.ones_like(signs)
    size = float(tensor.square().sum())

    def misfit(a: Tensor) -> float:
        own = (signs[:, None] * signs * (a @ a.T) ** p).sum()
        return size - 2 * float((signs * (apply(tensor, a) * a).sum(1)).sum()) + float(own)

    here, damping = misfit(factors), 1e-3
    for _ in range(_STEPS):
        inner = factors @ factors.T
        both = signs[:, None] * signs
        slope = (both * inner ** (p - 1)) @ factors - signs[:, None] * apply(tensor, factors)
        normal = torch.einsum("ij,cd->icjd", both * inner ** (p - 1), torch.eye(q).to(tensor))
        bend = (p - 1) * both * inner ** (p - 2)
        normal = normal + torch.einsum("ij,jc,id->icjd", bend, factors, factors)
        normal = normal.reshape(b * q, b * q)
        for _ in range(8):
            ridge = torch.diag(damping * normal.diagonal() + 1e-12 * normal.diagonal().max())
            move = torch.linalg.solve(normal + ridge, slope.flatten())
            trial = factors - move.reshape(b, q)
            there = misfit(trial)
            if there < here:
                break
            damping *= 4
        else:
            break
        gain, factors, here = here - there, trial, there
        damping = max(damping / 5, 1e-12)
        if gain <= _STALLED * abs(here) or here <= 1e-14 * size:
            break
    norms: Tensor = factors.norm(dim=1, keepdim=True)
    return factors / norms.clamp_min(1e-12)
