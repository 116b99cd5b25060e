"""RMSProp on torch's fused Adam kernel: one pass over the numbers instead of five.

    v <- a v + (1 - a) g^2,   theta <- theta - rate g / (sqrt(v) + eps)

Adam without its first moment divides sqrt(v) by c = sqrt(1 - a^t), t the number of steps; taking
rate / c for its rate and eps / c for its eps cancels this, so the update is that of
`torch.optim.RMSprop`. On large networks the update costs more than the gradient, and this kernel a
fraction of either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["FusedRMSProp"]


class FusedRMSProp(torch.optim.Adam):
    def __init__(
        self, parameters: Iterable[Tensor], rate: float, decay: float = 0.9, eps: float = 1e-8
    ) -> None:
        super().__init__(parameters, lr=rate, betas=(0.0, decay), eps=eps, fused=True)
        self.rate, self.decay, self.eps = rate, decay, eps

    def advance(self) -> None:
        """One step. (`step` itself is wrapped by torch, so it is left as it is.)"""
        first = self.param_groups[0]["params"][0]
        taken = int(self.state[first]["step"]) if first in self.state else 0
        cancelled = math.sqrt(1 - self.decay ** (taken + 1))
        for group in self.param_groups:
            group["lr"], group["eps"] = self.rate / cancelled, self.eps / cancelled
        self.step()
