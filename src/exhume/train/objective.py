"""What training lowers: cross-entropy, its labels smoothed if asked, or the squared error of a number.

    cross-entropy    -sum_c w_c log softmax(o)_c,    w = (1 - s)·onehot(y) + s/c
    mse              (o - y)²                         one output

A record of a regression is a whole row: what the network sees, and after it the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Records


@dataclass(frozen=True)
class Objective:
    loss: str = "cross-entropy"  # or mse
    smoothing: float = 0.0  # s above: share of a label that all classes have alike

    def __post_init__(self) -> None:
        if self.smoothing and self.of_numbers:
            raise ExhumeError("label_smoothing: of classes; mse has none")

    @property
    def of_numbers(self) -> bool:
        return self.loss == "mse"

    def seen(self, inputs: Tensor) -> Tensor:
        """What the network sees of (…, *shape) records."""
        return inputs[..., :-1] if self.of_numbers else inputs

    def wanted(self, records: Records, outputs: int) -> Tensor:
        """(…, c) that the outputs, or their softmax, should be."""
        if self.of_numbers:
            return records.inputs[..., -1:]
        hot = F.one_hot(records.labels, outputs).to(records.inputs.dtype)
        return torch.lerp(hot, torch.full_like(hot, 1 / outputs), self.smoothing)

    def value(self, outputs: Tensor, records: Records, reduction: str = "sum") -> Tensor:
        """() of (n, c) outputs."""
        if self.of_numbers:
            return F.mse_loss(outputs, records.inputs[..., -1:], reduction=reduction)
        return F.cross_entropy(
            outputs, records.labels, reduction=reduction, label_smoothing=self.smoothing
        )

    def check_fits(self, architecture: Architecture, records: Records) -> None:
        """Refuse records of another shape than the network takes."""
        shape = records.shape
        if self.of_numbers and len(shape) == 1:
            shape = (shape[0] - 1,)
        if shape != architecture.input_shape:
            raise ExhumeError(
                f"records of shape {shape} do not fit {architecture}, "
                f"which takes {architecture.input_shape}"
            )

    def __str__(self) -> str:
        if self.of_numbers:
            return "squared error"
        return f"cross-entropy{f', label smoothing {self.smoothing:g}' if self.smoothing else ''}"


CROSS_ENTROPY = Objective()
