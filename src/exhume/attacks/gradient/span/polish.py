"""Fit F(p) = sum_i r_i sigma(p · m_i) to its values and slopes: Levenberg-Marquardt on all m_i and r_i.

Gradient matching where it is small: inside the span there are B^2 + B unknowns instead of B d, and many
more equations. For smooth activations a fair start ends at rounding error, and the misfit says so without
looking at any truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.span.regression import Samples
from exhume.models.activations import Activation

__all__ = ["Fit", "best_strengths", "polish"]

_STEPS = 60
_TINY = 1e-13  # misfit at which nothing is left to gain
_STALLED = 1e-4  # relative gain of a step that counts as none
_PATIENCE = 6


@dataclass(frozen=True, eq=False)
class Fit:
    records: Tensor  # (b, q) m_i
    strengths: Tensor  # (b,) r_i
    misfit: float  # norm of the residual over that of the observation


def polish(activation: Activation, samples: Samples, records: Tensor, steps: int = _STEPS) -> Fit:
    """Move a start (b, q) to the nearest best fit. Strengths start at their least-squares values."""
    model = _Model(activation, samples)
    strengths = best_strengths(activation, samples, records)
    residual = model.residual(records, strengths)
    damping, idle = 1e-3, 0
    for _ in range(steps):
        if float(residual.norm()) <= _TINY * model.size or idle >= _PATIENCE:
            break
        jacobian = model.jacobian(records, strengths)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ residual
        accepted = False
        for _ in range(10):
            move = _damped(normal, slope, damping)
            here = records - move[: records.numel()].reshape(records.shape)
            there = strengths - move[records.numel() :]
            trial = model.residual(here, there)
            if float(trial.norm()) < float(residual.norm()):
                gain = 1 - float(trial.norm()) / float(residual.norm())
                idle = idle + 1 if gain < _STALLED else 0
                records, strengths, residual = here, there, trial
                damping, accepted = max(damping / 5, 1e-14), True
                break
            damping *= 4
        if not accepted:
            break
    return Fit(records, strengths, float(residual.norm()) / model.size)


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
    normal = columns.T @ columns
    ridge = 1e-12 * normal.diagonal().mean().clamp_min(1e-300)
    eye = torch.eye(len(normal), dtype=normal.dtype)
    strengths: Tensor = torch.linalg.solve(normal + ridge * eye, columns.T @ target)
    return strengths


def _damped(normal: Tensor, slope: Tensor, damping: float) -> Tensor:
    diagonal = normal.diagonal()
    floor = 1e-9 * diagonal.max().clamp_min(1e-300)
    added = damping * (diagonal + floor) + 1e-15 * diagonal.max()
    move: Tensor = torch.linalg.solve(normal + torch.diag(added), slope)
    return move


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
            bends = strengths * _bend(self.activation.slope, self.activation.apply, z)
            # d slope_a / d m_ic = r_i (sigma'' p_c m_ia + sigma' [a = c])
            outer = bends[:, :, None] * points[:, None, :]  # (m, b, q)
            steep = outer[:, None] * records.T[None, :, :, None]  # (m, q, b, q)
            steep.diagonal(dim1=1, dim2=3).add_((gates * strengths)[:, :, None])
            over_strengths = gates[:, None, :] * records.T
            parts.append(torch.cat([steep.reshape(m * q, b * q), over_strengths.flatten(0, 1)], 1))
        return torch.cat(parts)


def _bend(
    slope: Callable[[Tensor, Tensor], Tensor], apply: Callable[[Tensor], Tensor], z: Tensor
) -> Tensor:
    """sigma'' by a central difference of sigma': exact enough for a Jacobian."""
    h = 1e-5
    up, down = z + h, z - h
    return (slope(up, apply(up)) - slope(down, apply(down))) / (2 * h)
