"""Recipes: a way of training as a value that can be named, hashed and handed to an adversary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.contract import ExhumeError, Key, Records
from exhume.models.mlp import MLP
from exhume.train.stacked import Descent, bytes_per_model, descend

__all__ = ["FullBatch"]


@dataclass(frozen=True)
class FullBatch:
    """Full-batch gradient descent with momentum on an MLP (Balle22). Deterministic: the key is not used."""

    architecture: MLP
    descent: Descent = Descent()

    def fit(self, initial: Tensor, fixed: Records, extra: Records, key: Key) -> Tensor:
        if fixed.shape != self.architecture.input_shape:
            raise ExhumeError(
                f"records of shape {fixed.shape} do not fit {self.architecture}, "
                f"which takes {self.architecture.input_shape}"
            )
        trained = descend(self.architecture, self.descent, initial, fixed, extra)
        if not bool(torch.isfinite(trained).all()):
            raise ExhumeError(
                f"training diverged (rate {self.descent.rate}, momentum {self.descent.momentum}): "
                "the weights are not finite; lower the rate"
            )
        return trained

    def bytes_per_model(self, records: int) -> int:
        return bytes_per_model(self.architecture, records)

    def __str__(self) -> str:
        d = self.descent
        decay = f", weight decay {d.weight_decay:g}" if d.weight_decay else ""
        return (
            f"full-batch gradient descent, {d.steps} steps, rate {d.rate:g}, "
            f"momentum {d.momentum:g}{decay}, cross-entropy"
        )
