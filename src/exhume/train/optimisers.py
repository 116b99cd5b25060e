"""Optimisers as values, and their update of a stack of models: the arithmetic of `torch.optim`, in place.

An `Update` receives the *sum* of the records' gradients and the number to divide it by, so that no
pass over the records' errors is spent on a division.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError

__all__ = ["Adam", "Descent", "Optimiser", "Update"]

Update = Callable[[Sequence[Tensor], int | float], None]
"""(sums of gradients, count): one step on the parameters given at the start; may overwrite the sums."""


@dataclass(frozen=True)
class Descent:
    """Heavy-ball gradient descent on the mean loss: v <- m·v + g, theta <- theta - rate·v."""

    steps: int = 100
    rate: float = 0.1
    momentum: float = 0.0  # Balle22: 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def start(self, parameters: Sequence[Tensor]) -> Update:
        velocities = [torch.zeros_like(tensor) for tensor in parameters]

        def update(sums: Sequence[Tensor], count: int | float) -> None:
            for tensor, velocity, total in zip(parameters, velocities, sums, strict=True):
                velocity.mul_(self.momentum).add_(total, alpha=1 / count)
                if self.weight_decay:
                    velocity.add_(tensor, alpha=self.weight_decay)
                tensor.sub_(velocity, alpha=self.rate)

        return update

    def __str__(self) -> str:
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        return f"{self.steps} steps, rate {self.rate:g}, momentum {self.momentum:g}{decay}"


@dataclass(frozen=True)
class Adam:
    """Adam as `torch.optim.Adam` has it; weight decay is added to the gradient, or decoupled as in AdamW."""

    steps: int = 100
    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False  # the decay shrinks the weights by themselves, past the moments

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ExhumeError(f"{name}: {value} given, needed in [0, 1)")

    def start(self, parameters: Sequence[Tensor]) -> Update:
        means = [torch.zeros_like(tensor) for tensor in parameters]
        squares = [torch.zeros_like(tensor) for tensor in parameters]
        done = 0

        def update(sums: Sequence[Tensor], count: int | float) -> None:
            nonlocal done
            done += 1
            rate = self.rate / (1 - self.beta1**done)
            unbias = math.sqrt(1 - self.beta2**done)
            for tensor, mean, square, total in zip(parameters, means, squares, sums, strict=True):
                gradient = total.div_(count)
                if self.decoupled:
                    tensor.mul_(1 - self.rate * self.weight_decay)
                elif self.weight_decay:
                    gradient.add_(tensor, alpha=self.weight_decay)
                mean.lerp_(gradient, 1 - self.beta1)
                square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
                tensor.addcdiv_(mean, square.sqrt().div_(unbias).add_(self.epsilon), value=-rate)

        return update

    def __str__(self) -> str:
        kind = "decoupled weight decay" if self.decoupled else "weight decay"
        decay = f", {kind} {self.weight_decay:g}" if self.weight_decay else ""
        return (
            f"{self.steps} steps, rate {self.rate:g}, Adam ({self.beta1:g}, {self.beta2:g}){decay}"
        )


Optimiser = Descent | Adam


def _check_steps(steps: int) -> None:
    if steps < 0:
        raise ExhumeError(f"steps: {steps} given, at least 0 needed")
