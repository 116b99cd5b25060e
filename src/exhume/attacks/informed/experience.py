"""How far off a drawn record probably is: as far as those that look like it were, on shadows kept aside."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Experience"]


@dataclass(frozen=True, eq=False)
class Experience:
    """Reconstructions of shadows that no training has seen, and their errors."""

    drawn: Tensor  # (h, *record)
    errors: Tensor  # (h,) squared error per value

    @staticmethod
    def of(drawn: Tensor, truth: Tensor) -> Experience:
        return Experience(drawn, (drawn - truth).square().flatten(1).mean(1))

    def expected(self, found: Tensor) -> Tensor:
        """(m, *record) to (m,): the mean error of the sqrt(h) most similar reconstructions."""
        nearest = math.isqrt(len(self.errors))
        apart = torch.cdist(found.flatten(1), self.drawn.flatten(1))
        return self.errors[apart.topk(nearest, largest=False).indices].mean(1)
