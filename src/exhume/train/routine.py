"""How a client trains, whatever its network: its optimiser, its rates, and which records each step sees.

Plain SGD with momentum mu and weight decay lambda is linear in the gradients g_k of its steps, so that

    theta_K = D theta_0 - sum_k c_k g_k,        u = (D theta_0 - theta_K) / sum_k c_k

D and the c_k are numbers that follow from the rates: the decay is subtracted exactly, and u is the average
gradient, the later ones of less weight under momentum. Adam's first step is rate · g / (|g| + eps), which
gives g back wherever eps is not lost in the rounding of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError

__all__ = ["LOSSES", "OPTIMISERS", "PLAIN", "SCHEDULES", "Routine"]

OPTIMISERS = ("sgd", "adam")
SCHEDULES = ("constant", "linear", "cosine", "step")
LOSSES = ("cross-entropy", "logistic", "mse", "next-token", "masked")  # the last two: of texts

_TENTHS = 3  # parts of a schedule by steps, each with a tenth of the rate of the one before
_LOST = 0.01  # share of Adam's values that may have lost their size
_CLEAR = 8.0  # times the rounding of the weights: what a size must leave of Adam's step
_TINY = 1e-38  # under a root, which has no slope at 0


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
        """Of an update: `count`, or what epochs over so many records make."""
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
        found: list[Tensor] = []
        for _ in range(self.epochs):
            order = torch.arange(records)
            if self.shuffled and generator is not None:
                order = torch.randperm(records, generator=generator)
            found += torch.split(order, self.local_batch)
        return found

    def rates(self, rate: float, steps: int) -> list[float]:
        """One for each step, from `rate` on."""
        done = [k / steps for k in range(steps)]
        if self.schedule == "linear":
            return [rate * (1 - share) for share in done]
        if self.schedule == "cosine":
            return [rate * (1 + math.cos(math.pi * share)) / 2 for share in done]
        if self.schedule == "step":
            return [rate * 0.1 ** int(_TENTHS * share) for share in done]
        return [rate] * steps

    # Training

    def trained(
        self,
        start: Tensor,
        gradient: Callable[[Tensor, int], Tensor],
        rates: Sequence[float],
        live: Tensor | None = None,
    ) -> Tensor:
        """(p,) where training ends; differentiable. live: (p,) 0 for what is frozen."""
        here, first, second = start, torch.zeros_like(start), torch.zeros_like(start)
        for k, rate in enumerate(rates):
            slope = gradient(here, k)
            if self.weight_decay:
                slope = slope + self.weight_decay * here
            if live is not None:
                slope = slope * live
            if self.optimiser == "sgd":
                first = slope + self.momentum * first if k and self.momentum else slope
                here = here - rate * first
            else:
                one, two = self.betas
                first = one * first + (1 - one) * slope
                second = two * second + (1 - two) * slope.square()
                mean, square = first / (1 - one ** (k + 1)), second / (1 - two ** (k + 1))
                here = here - rate * mean / (square.clamp_min(_TINY).sqrt() + self.eps)
        return here

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
