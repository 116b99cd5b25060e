"""How a client of federated learning makes its update, as a value: one gradient, or several local steps.

    u = (theta_0 - theta_K) / (K · rate),     theta_{k+1} = theta_k - rate · g(theta_k)

u is the gradient itself for one step. Private: every record's gradient is clipped to norm C and
N(0, (sigma C)^2) added to their sum, in every step (train/dp.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from exhume.contract import Architecture, ExhumeError, Key, Records
from exhume.models.own.language import LanguageModel
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy

__all__ = ["LocalTraining", "batch_loss"]


def batch_loss(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """() cross-entropy; of a single output, the logistic loss with labels 0 and 1."""
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(
            outputs[:, 0], labels.to(outputs.dtype), reduction=reduction
        )
    return F.cross_entropy(outputs, labels, reduction=reduction)


@dataclass(frozen=True)
class LocalTraining:
    """Plain SGD on one batch, every step on all of it; a `Recipe` whose update can be asked for."""

    architecture: Architecture
    steps: int = 1
    rate: float = 0.1
    reduction: str = "mean"
    privacy: Privacy = NOT_PRIVATE

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ExhumeError(f"steps: must be at least 1, got {self.steps}")
        if self.reduction not in ("mean", "sum"):
            raise ExhumeError(f"reduction: {self.reduction!r} is not one of mean, sum")

    def updates(self, initial: Tensor, batches: Records, key: Key, first: int = 0) -> Tensor:
        """(p,) parameters and (s, b, *shape) batches to (s, p) updates, in the dtype of the parameters."""
        module, size = self.architecture.build().to(initial.dtype), self.architecture.layout.size
        found = []
        for i, (inputs, labels) in enumerate(
            zip(batches.inputs.to(initial.dtype), batches.labels, strict=True)
        ):
            noise = NoiseStream(key, first + i, 1, size) if self.privacy.noise else None
            here = initial
            for _ in range(self.steps):
                slope = self._gradient(module, here, inputs, labels, noise)
                here = here - self.rate * slope
            found.append(slope if self.steps == 1 else (initial - here) / (self.steps * self.rate))
        return torch.stack(found)

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        """(s, p) where a client ends that trains on `fixed` and `extra[i]`."""
        own = extra.labels.shape[0]
        joined = Records(
            torch.cat([fixed.inputs.expand(own, *fixed.inputs.shape), extra.inputs], 1),
            torch.cat([fixed.labels.expand(own, len(fixed)), extra.labels], 1),
            extra.classes,
        )
        return initial - self.rate * self.steps * self.updates(initial, joined, key, first)

    def _gradient(
        self,
        module: nn.Module,
        at: Tensor,
        inputs: Tensor,
        labels: Tensor,
        noise: NoiseStream | None,
    ) -> Tensor:
        if not self.privacy.clips:
            return self._plain(module, at, inputs, labels, self.reduction)
        total = torch.zeros_like(at)
        for record, label in zip(inputs, labels, strict=True):
            one = self._plain(module, at, record[None], label[None], "sum")
            total += one * self.privacy.factors(one.square().sum())
        if noise is not None:
            total += self.privacy.deviation * noise.draw(at)[0]
        return total / len(labels) if self.reduction == "mean" else total

    def _plain(
        self, module: nn.Module, at: Tensor, inputs: Tensor, labels: Tensor, reduction: str
    ) -> Tensor:
        layout = self.architecture.layout

        def loss(point: Tensor) -> Tensor:
            outputs: Tensor = functional_call(module, layout.split(point), (inputs,))
            if isinstance(self.architecture, LanguageModel):
                return self.architecture.batch_loss(outputs, inputs, reduction)
            return batch_loss(outputs, labels, reduction)

        found: Tensor = grad(loss)(at)
        return found.detach()

    def __str__(self) -> str:
        private = f", differentially private: {self.privacy}" if self.privacy.clips else ""
        steps = "one local step" if self.steps == 1 else f"{self.steps} local steps"
        return f"{steps} of rate {self.rate:g}, {self.reduction} loss{private}"
