"""How a client of federated learning makes its update, as a value: one gradient, or several local steps.

    u = (theta_0 - theta_K) / (K · rate),     theta_{k+1} = theta_k - rate · g(theta_k)

u is the gradient itself for one step. Epochs over smaller batches, momentum, weight decay, Adam, schedules:
`routine.py`. Private: every record's gradient is clipped to norm C and N(0, (sigma C)^2) added to their
sum, in every step (train/dp.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from exhume.core.contract import Architecture, ExhumeError, GradientOf, Key, Records
from exhume.models.own.language import LanguageModel
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy
from exhume.train.routine import PLAIN, Routine

__all__ = ["LocalTraining", "Steps", "batch_loss", "record_losses"]


def batch_loss(
    outputs: Tensor, labels: Tensor, reduction: str = "mean", loss: str = "cross-entropy"
) -> Tensor:
    """() cross-entropy; of a single output, the logistic loss with labels 0 and 1; or the squared error.

    mse: labels are numbers (n,) of one output, numbers (n, c), or classes, which stand for rows of 0 and a 1.
    """
    if loss == "mse":
        wanted = labels if labels.shape == outputs.shape else _as_numbers(labels, outputs)
        return F.mse_loss(outputs, wanted.to(outputs.dtype), reduction=reduction)
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(
            outputs[:, 0], labels.to(outputs.dtype), reduction=reduction
        )
    if loss == "logistic":
        raise ExhumeError(f"loss: logistic is of one output, the model has {outputs.shape[1]}")
    return F.cross_entropy(outputs, labels, reduction=reduction)


def record_losses(outputs: Tensor, labels: Tensor, loss: str = "cross-entropy") -> Tensor:
    """(n,) one for each record; their mean is `batch_loss`."""
    if loss == "mse":
        wanted = labels if labels.shape == outputs.shape else _as_numbers(labels, outputs)
        return (outputs - wanted).square().mean(1)
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(
            outputs[:, 0], labels.to(outputs.dtype), reduction="none"
        )
    return F.cross_entropy(outputs, labels, reduction="none")


def _as_numbers(labels: Tensor, outputs: Tensor) -> Tensor:
    if outputs.shape[1] == 1:
        return labels[:, None]
    return F.one_hot(labels.long(), outputs.shape[1])


@dataclass(frozen=True)
class Steps:
    """How a client trained, as far as it is said."""

    count: int = 1  # that see all records each; with epochs: not used
    rate: float = 1.0
    routine: Routine = PLAIN
    frozen: tuple[str, ...] = ()  # parameters that stay as they are

    @property
    def several(self) -> bool:
        """More than one step, as far as that is known without the records."""
        return max(self.count, self.routine.epochs) > 1 or bool(self.routine.local_batch)

    def rates(self, records: int | None) -> list[float]:
        """Of the steps on so many records."""
        return self.routine.rates(self.rate, self.routine.steps(self.count, records))

    def of(self, architecture: Architecture, reduction: str = "mean") -> LocalTraining:
        return LocalTraining(
            architecture,
            self.count,
            self.rate,
            reduction,
            routine=self.routine,
            frozen=self.frozen,
        )

    def of_mean(self, size: int) -> Steps:
        """The same training with a mean over so many records in the place of a sum."""
        how = self.routine
        if how.optimiser == "adam":  # only eps has a size
            return replace(self, routine=replace(how, eps=how.eps / size))
        decay = replace(how, weight_decay=how.weight_decay / size)
        return replace(self, rate=self.rate * size, routine=decay)


@dataclass(frozen=True)
class LocalTraining:
    """Training on one client's records; a `Recipe` whose update can be asked for."""

    architecture: Architecture
    steps: int = 1
    rate: float = 0.1
    reduction: str = "mean"
    privacy: Privacy = NOT_PRIVATE
    routine: Routine = PLAIN
    frozen: tuple[str, ...] = ()  # parameters that stay as they are

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ExhumeError(f"steps: must be at least 1, got {self.steps}")
        if self.reduction not in ("mean", "sum"):
            raise ExhumeError(f"reduction: {self.reduction!r} is not one of mean, sum")

    def rates(self, records: int) -> list[float]:
        """Of the steps on so many records."""
        return self.routine.rates(self.rate, self.routine.steps(self.steps, records))

    def updates(
        self,
        initial: Tensor,
        batches: Records,
        key: Key,
        first: int = 0,
        order: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """(p,) parameters and (s, b, *shape) records to (s, p) updates, in the dtype of the parameters.

        order: rows that each step sees; None: drawn by the key, where they are shuffled.
        """
        size = self.architecture.layout.size
        found = []
        for i, (inputs, labels) in enumerate(
            zip(batches.inputs.to(initial.dtype), batches.labels, strict=True)
        ):
            noise = NoiseStream(key, first + i, 1, size) if self.privacy.noise else None
            drawn = key.fold("order", first + i).generator()
            rows = order or self.routine.batches(self.steps, len(labels), drawn)
            found.append(self._update(initial, inputs, labels, rows, noise))
        return torch.stack(found)

    def _update(
        self,
        initial: Tensor,
        inputs: Tensor,
        labels: Tensor,
        rows: Sequence[Tensor],
        noise: NoiseStream | None,
    ) -> Tensor:
        """(p,) of one client, whose steps see these rows."""
        module = self.architecture.build().to(initial.dtype)
        rates = self.routine.rates(self.rate, len(rows))

        def gradient(here: Tensor, k: int) -> Tensor:
            return self._gradient(module, here, inputs[rows[k]], labels[rows[k]], noise)

        if len(rows) == 1:
            slope = gradient(initial, 0)
            return slope if self.live is None else slope * self.live.to(slope)
        live = None if self.live is None else self.live.to(initial)
        end = self.routine.trained(initial, gradient, rates, live)
        return self.routine.average(initial, end, rates, live)

    @property
    def live(self) -> Tensor | None:
        """(p,) 0 for what is frozen."""
        if not self.frozen:
            return None
        layout = self.architecture.layout
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        return layout.join(
            {n: torch.full(s, 0.0 if n in self.frozen else 1.0) for n, s in shapes.items()}
        )

    def simulated(
        self, gradient: GradientOf, at: Tensor, records: Tensor, targets: Tensor
    ) -> Tensor:
        """(p,) the update that training on the records gives; differentiable.

        gradient: (p,) of the mean loss, of parameters, records and targets. Every step sees all records,
        also where a client's sees a batch of them: who searches for records knows no order, and all orders
        have the same mean up to the rate.
        """
        rates = self.rates(len(records))
        live = None if self.live is None else self.live.to(at)
        if len(rates) == 1:
            slope = gradient(at, records, targets)
            return slope if live is None else slope * live
        end = self.routine.trained(
            at, lambda here, _: gradient(here, records, targets), rates, live
        )
        return self.routine.average(at, end, rates, live)

    @property
    def squared(self) -> bool:
        """The loss is the squared error, so that labels are numbers."""
        return self.routine.loss == "mse"

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
        found = self.updates(initial, joined, key, first)
        rates = self.rates(joined.labels.shape[1])
        live = None if self.live is None else self.live.to(initial)
        return torch.stack([self.routine.ended(initial, one, rates, live) for one in found])

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
            return batch_loss(outputs, labels, reduction, self.routine.loss)

        found: Tensor = grad(loss)(at)
        return found.detach()

    def __str__(self) -> str:
        private = f", differentially private: {self.privacy}" if self.privacy.clips else ""
        steps = "one local step" if self.steps == 1 else f"{self.steps} local steps"
        if self.routine.epochs:
            steps = "one epoch" if self.routine.epochs == 1 else f"{self.routine.epochs} epochs"
        more = f", {self.routine}" if str(self.routine) else ""
        loss = "" if self.routine.loss == "cross-entropy" else f"{self.routine.loss} "
        return f"{steps} of rate {self.rate:g}{more}, {self.reduction} {loss}loss{private}"
