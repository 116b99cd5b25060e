"""How a client of federated learning makes its update, as a value: one gradient, or several local steps.

    u = (theta_0 - theta_K) / (K · rate),     theta_{k+1} = theta_k - rate · g(theta_k)

u is the gradient itself for one step. Epochs over smaller batches, momentum, weight decay, Adam, schedules:
`Routine`. Private: every record's gradient is clipped to norm C and N(0, (sigma C)^2) added to their
sum, in every step (train/dp.py).

How a client trains, whatever its network: its optimiser, its rates, and which records each step sees.

Plain SGD with momentum mu and weight decay lambda is linear in the gradients g_k of its steps, so that

    theta_K = D theta_0 - sum_k c_k g_k,        u = (D theta_0 - theta_K) / sum_k c_k

D and the c_k are numbers that follow from the rates: the decay is subtracted exactly, and u is the average
gradient, the later ones of less weight under momentum. Adam's first step is rate · g / (|g| + eps), which
gives g back wherever eps is not lost in the rounding of the weights.

How finely numbers are known that may have passed through half precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import Architecture, ExhumeError, GradientOf, Key, Records
from exhume.models.own_texts import LanguageModel
from exhume.train.dp import NOT_PRIVATE, NoiseStream, Privacy
from exhume.train.optimisers import SCHEDULES, AdamRule, HeavyBall, Rule, rates_of

OPTIMISERS = ("sgd", "adam")
LOSSES = ("cross-entropy", "logistic", "mse", "next-token", "masked")  # the last two: of texts
_LOST = 0.01  # share of Adam's values that may have lost their size
_CLEAR = 8.0  # times the rounding of the weights: what a size must leave of Adam's step


@dataclass(frozen=True)
class Routine:
    """What is said of a client's training besides its rate."""

    epochs: int = 0  # over its records, in batches; 0: steps that see all of them
    local_batch: int = 0  # records of a step; 0: all
    shuffled: bool = True  # before every epoch, in an order that nobody else knows
    optimiser: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0  # added to the gradient
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    eps: float = 1e-8  # of Adam
    schedule: str = "constant"  # of the rate over the local steps
    loss: str = "cross-entropy"

    def __post_init__(self) -> None:
        for name, legal in (
            ("optimiser", OPTIMISERS),
            ("schedule", SCHEDULES),
            ("loss", LOSSES),
        ):
            if getattr(self, name) not in legal:
                raise ExhumeError(
                    f"{name}: {getattr(self, name)!r} is not one of {', '.join(legal)}"
                )
        if self.epochs < 0 or self.local_batch < 0:
            raise ExhumeError(
                f"epochs, local_batch: must be at least 0, got {self.epochs} and {self.local_batch}"
            )
        if self.local_batch and not self.epochs:
            raise ExhumeError("local_batch: say with epochs how often the client sees its records")
        if not 0 <= self.momentum < 1 or not self.weight_decay >= 0 or not self.eps > 0:
            raise ExhumeError(
                f"momentum, weight_decay, eps: must be in [0, 1), at least 0 and above 0, got "
                f"{self.momentum:g}, {self.weight_decay:g} and {self.eps:g}"
            )
        if self.momentum and self.optimiser == "adam":
            raise ExhumeError("momentum: Adam has none besides its betas")

    # Steps

    def steps(self, count: int, records: int | None) -> int:
        """How many an update has: `count`, or what epochs over so many records make."""
        if not self.epochs:
            return count
        if not self.local_batch:
            return self.epochs
        if records is None:
            raise ExhumeError(
                "local_batch: how many steps an epoch has is not known without the number of records"
            )
        return self.epochs * math.ceil(records / self.local_batch)

    def cuts(self, records: int) -> bool:
        """A step sees some of so many records only."""
        return bool(self.epochs) and 0 < self.local_batch < records

    def hidden_order(self, records: int) -> bool:
        """Which records a step saw is not known."""
        return self.shuffled and self.cuts(records)

    def batches(
        self, count: int, records: int, generator: torch.Generator | None = None
    ) -> list[Tensor]:
        """Rows that each step sees; shuffled by the generator, without it in order."""
        if not self.cuts(records):
            return [torch.arange(records)] * self.steps(count, records)
        rows: list[Tensor] = []
        for _ in range(self.epochs):
            order = torch.arange(records)
            if self.shuffled and generator is not None:
                order = torch.randperm(records, generator=generator)
            rows += torch.split(order, self.local_batch)
        return rows

    def rates(self, rate: float, steps: int) -> list[float]:
        """One for each step, from `rate` on."""
        return rates_of(self.schedule, rate, steps)

    # Training

    def trained(
        self,
        start: Tensor,
        gradient: Callable[[Tensor, int], Tensor],
        rates: Sequence[float],
        live: Tensor | None = None,
    ) -> Tensor:
        """(p,) where training ends; differentiable. live: (p,) 0 for what is frozen."""
        rule = self.rule(live)
        state = rule.start(start)
        for k, rate in enumerate(rates):
            state = rule.next(state, gradient(state[0], k), k, rate)
        return state[0]

    def rule(self, live: Tensor | None = None) -> Rule:
        if self.optimiser == "adam":
            return AdamRule(*self.betas, self.eps, self.weight_decay, live)
        return HeavyBall(self.momentum, self.weight_decay, live)

    def scale(self, rates: Sequence[float]) -> float:
        """sum_k c_k: how far an unchanging gradient of 1 moves; of Adam, the rates alone."""
        if self.optimiser == "adam":
            return sum(rates)
        zero = torch.zeros(1, dtype=torch.float64)
        return -float(self.trained(zero, lambda here, _: torch.ones_like(here), rates))

    def average(
        self, start: Tensor, end: Tensor, rates: Sequence[float], live: Tensor | None = None
    ) -> Tensor:
        """(p,) the average gradient of plain SGD; the gradient of one step of Adam; else its mean step."""
        if self.optimiser == "adam":
            one = len(rates) == 1
            return self._inverted(start, end, rates[0]) if one else (start - end) / sum(rates)
        still = start
        if self.weight_decay:
            still = self.trained(start, lambda here, _: torch.zeros_like(here), rates, live)
        return (still - end) / self.scale(rates)

    def ended(
        self, start: Tensor, update: Tensor, rates: Sequence[float], live: Tensor | None = None
    ) -> Tensor:
        """(p,) where training ended; the inverse of `average`."""
        if self.optimiser == "adam" and len(rates) > 1:
            return start - sum(rates) * update
        return self.trained(start, lambda _, __: update, rates, live)

    def _inverted(self, start: Tensor, end: Tensor, rate: float) -> Tensor:
        """g of s = g / (|g| + eps): |g| = eps |s| / (1 - |s|)."""
        step = (start - end) / rate
        rounding = torch.finfo(start.dtype).eps * torch.maximum(start.abs(), end.abs()) / rate
        left = 1 - step.abs()
        moved = step != 0
        lost = float((moved & (left < _CLEAR * rounding)).sum() / moved.sum().clamp_min(1))
        if lost > _LOST:
            raise ExhumeError(
                f"optimiser: Adam's first step keeps the signs of the gradient, but {lost:.0%} of its sizes "
                f"are lost in the rounding of the weights (eps {self.eps:g}, rate {rate:g}): only states in "
                "double precision could be read"
            )
        slope = self.eps * step / left.clamp_min(_CLEAR * rounding.clamp_min(1e-300))
        return slope - self.weight_decay * start

    def __str__(self) -> str:
        """What is unlike plain SGD on all records; empty: nothing."""
        said = [
            f"batches of {self.local_batch}" if self.local_batch else "",
            "in the order of the records" if self.local_batch and not self.shuffled else "",
            "Adam" if self.optimiser == "adam" else "",
            f"momentum {self.momentum:g}" if self.momentum else "",
            f"weight decay {self.weight_decay:g}" if self.weight_decay else "",
            f"{self.schedule} schedule" if self.schedule != "constant" else "",
        ]
        return ", ".join(part for part in said if part)


PLAIN = Routine()


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
    each = batch_loss(outputs, labels, "none", loss)
    return each.mean(1) if each.ndim == 2 else each


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
    privacy: Privacy = NOT_PRIVATE

    def still(self) -> Steps:
        """This training with clipping alone, which gives one update however often it is repeated."""
        return replace(self, privacy=self.privacy.still())

    @property
    def several(self) -> bool:
        """More than one step, as far as that is known without the records."""
        return max(self.count, self.routine.epochs) > 1 or bool(self.routine.local_batch)

    def rates(self, records: int | None) -> list[float]:
        """One for each step on so many records."""
        return self.routine.rates(self.rate, self.routine.steps(self.count, records))

    def of(self, architecture: Architecture, reduction: str = "mean") -> LocalTraining:
        return LocalTraining(
            architecture,
            self.count,
            self.rate,
            reduction,
            privacy=self.privacy,
            routine=self.routine,
            frozen=self.frozen,
        )

    def of_mean(self, size: int) -> Steps:
        """This training with a mean over so many records in the place of a sum."""
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
        """One for each step on so many records."""
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
        updates = []
        for i, (inputs, labels) in enumerate(
            zip(batches.inputs.to(initial.dtype), batches.labels, strict=True)
        ):
            noise = NoiseStream(key, first + i, 1, size) if self.privacy.noise else None
            drawn = key.fold("order", first + i).generator()
            rows = order or self.routine.batches(self.steps, len(labels), drawn)
            updates.append(self._update(initial, inputs, labels, rows, noise))
        return torch.stack(updates)

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
        models = extra.labels.shape[0]
        joined = Records(
            torch.cat([fixed.inputs.expand(models, *fixed.inputs.shape), extra.inputs], 1),
            torch.cat([fixed.labels.expand(models, len(fixed)), extra.labels], 1),
            extra.classes,
        )
        updates = self.updates(initial, joined, key, first)
        rates = self.rates(joined.labels.shape[1])
        live = None if self.live is None else self.live.to(initial)
        return torch.stack([self.routine.ended(initial, one, rates, live) for one in updates])

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
        live = None if self.live is None else self.live.to(at)
        for record, label in zip(inputs, labels, strict=True):
            one = self._plain(module, at, record[None], label[None], "sum")
            one = one if live is None else one * live  # what is frozen has no gradient to clip
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

        return slope_at(loss, at)

    def __str__(self) -> str:
        private = f", differentially private: {self.privacy}" if self.privacy.clips else ""
        steps = "one local step" if self.steps == 1 else f"{self.steps} local steps"
        if self.routine.epochs:
            steps = "one epoch" if self.routine.epochs == 1 else f"{self.routine.epochs} epochs"
        more = f", {self.routine}" if str(self.routine) else ""
        loss = "" if self.routine.loss == "cross-entropy" else f"{self.routine.loss} "
        return f"{steps} of rate {self.rate:g}{more}, {self.reduction} {loss}loss{private}"


def slope_at(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """(p,) the gradient there. `torch.func.grad` imports modules for a second: no plan waits for them."""
    point = at.detach().requires_grad_(True)
    with torch.enable_grad():
        value = loss(point)
    return torch.autograd.grad(value, point)[0]


def half_precision(values: Tensor) -> float | None:
    """Relative rounding of the half precision that holds all values exactly; None: neither does."""
    for kind in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(kind).to(values.dtype), values):
            return torch.finfo(kind).eps
    return None
