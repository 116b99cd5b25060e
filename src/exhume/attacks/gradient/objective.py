"""What gradient matching minimises: how far the records' own gradient is from the released one, and what is
known of images and of batch norm besides."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from exhume.core.contract import Architecture, ClientTraining, Layout
from exhume.models.probes import before

__all__ = ["Objective", "Weights", "total_variation"]


@dataclass(frozen=True)
class Weights:
    """Of what is added to the mismatch."""

    variation: float = 0.0
    group: float = 0.0
    statistics: float = 0.0


@dataclass(frozen=True, eq=False)
class Objective:
    """Of one released gradient. Records are (b, *shape), targets (b, outputs)."""

    module: nn.Module
    layout: Layout
    values: Tensor  # (p,) the released gradient
    at: Tensor  # (p,)
    cosine: bool  # else squared distance
    searched: bool  # targets are logits of labels that nobody knows
    local: ClientTraining | None = None  # how records became an update; None: one plain step
    statistics: dict[str, Tensor] = field(
        default_factory=dict
    )  # of batch norm, as `Gradient` has them

    def mismatch(self, records: Tensor, targets: Tensor) -> Tensor:
        """() how far the gradient of these records is from the released one."""
        return self._compared(records, targets)[0]

    def cost(self, records: Tensor, targets: Tensor, middle: Tensor, weights: Weights) -> Tensor:
        """() the mismatch and all else. middle: the mean of all restarts' records."""
        value, seen = self._compared(records, targets)
        for name, wanted in (self.statistics if seen else {}).items():
            gap = (seen[name] - wanted).square().sum() / wanted.square().sum().clamp_min(1e-30)
            value = value + weights.statistics / len(self.statistics) * gap
        if weights.group:
            value = value + weights.group * (records - middle).square().mean()
        if weights.variation:
            value = value + weights.variation * total_variation(records)
        return value

    def _compared(self, records: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.local is None:
            own, seen = grad(self._loss, has_aux=True)(self.at, records, targets)
        else:  # what batch norm saw is known of one plain step only
            slope = grad(lambda *given: self._loss(*given)[0])
            own, seen = self.local.simulated(slope, self.at, records, targets), {}
        size = self.values.norm().clamp_min(1e-30)
        if self.cosine:
            return 1 - (own @ self.values) / (own.norm() * size).clamp_min(1e-30), seen
        return ((own - self.values) / size).square().sum(), seen

    def _loss(
        self, flat: Tensor, records: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        seen: dict[str, Tensor] = {}  # mean and variance of every channel that enters a batch norm

        def keep(layer: str, inputs: Tensor) -> None:
            channels = inputs.transpose(0, 1).flatten(1)
            seen[f"{layer}.mean"], seen[f"{layer}.var"] = channels.mean(1), channels.var(1)

        norms = sorted({name.rpartition(".")[0] for name in self.statistics})
        with before(self.module, norms, keep):
            outputs = functional_call(self.module, self.layout.split(flat), (records,))
        if self.local is not None and self.local.squared:
            return F.mse_loss(outputs, targets), seen
        if outputs.shape[1] == 1:
            share = torch.sigmoid(targets) if self.searched else targets
            return F.binary_cross_entropy_with_logits(outputs, share), seen
        share = torch.softmax(targets, 1) if self.searched else targets
        return -(share * torch.log_softmax(outputs, 1)).sum(1).mean(), seen

    @staticmethod
    def outputs(architecture: Architecture, at: Tensor) -> int:
        """Classes: the last trained layer need not be the last one."""
        zeros = at.new_zeros(2, *architecture.input_shape)
        named = architecture.layout.split(at)
        found: int = functional_call(architecture.build(), named, (zeros,)).shape[1]
        return found


def total_variation(records: Tensor) -> Tensor:
    """() mean absolute difference of neighbouring pixels; 0 for records that are no images."""
    if records.ndim < 4:
        return records.new_zeros(())
    down = (records[..., 1:, :] - records[..., :-1, :]).abs().mean()
    right = (records[..., 1:] - records[..., :-1]).abs().mean()
    return down + right
