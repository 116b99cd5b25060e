"""What is known of images beforehand, as penalties on candidates and a bound on their contrast.

    box   sum over pixels of (|x| - 1)_+²         inputs less a mean lie in [-1, 1] (authors' code)
    tv    sum over neighbours of sqrt(diff² + eps)   smooth images

Besides, attacks bound the contrast, ||x|| <= c·sqrt(d), which stops the search from trading large inputs
against small multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Prior"]

_EPSILON = 1e-3


@dataclass(frozen=True)
class Prior:
    box: float = 0.0  # weight; Buzaglo23: 1
    tv: float = 0.0  # weight

    def __bool__(self) -> bool:
        return bool(self.box or self.tv)

    def at(self, inputs: Tensor, shape: tuple[int, ...]) -> tuple[float, Tensor]:
        """(m, d) centred inputs: the penalty and its gradient (m, d)."""
        over = (inputs.abs() - 1).clamp_min(0)
        value = self.box * float(over.square().sum())
        gradient = (2 * self.box) * over * inputs.sign()
        if self.tv and len(shape) == 3:
            images = inputs.reshape(-1, *shape)
            slope = torch.zeros_like(images)
            for axis in (2, 3):
                difference = images.diff(dim=axis)
                length = (difference.square() + _EPSILON**2).sqrt()
                value += self.tv * float(length.sum())
                pull = self.tv * difference / length
                size = images.shape[axis]
                slope.narrow(axis, 1, size - 1).add_(pull)
                slope.narrow(axis, 0, size - 1).sub_(pull)
            gradient = gradient + slope.flatten(1)
        return value, gradient
