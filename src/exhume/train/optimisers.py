"""Optimisers as values, and their update of a stack of models: the arithmetic of `torch.optim`, in place.

An `Update` receives the *sum* of the records' gradients and the number to divide it by, so that no
pass over the records' errors is spent on a division.

Optimisers as pure functions of their state, and the derivative of a step.

A state is (k, p): the weights first, then what the optimiser remembers. `push` carries a change of the
state and of the gradient through one step, `pull` is its transpose:

    push: (ds, dg) -> d s'                 pull: l' -> (l, l_g),     <l', push(ds, dg)> = <l, ds> + <l_g, dg>

The arithmetic is that of `train/optimisers.py`, out of place.

RMSProp on torch's fused Adam kernel: one pass over the numbers instead of five.

    v <- a v + (1 - a) g^2,   theta <- theta - rate g / (sqrt(v) + eps)

Adam without its first moment divides sqrt(v) by c = sqrt(1 - a^t), t the number of steps; taking
rate / c for its rate and eps / c for its eps cancels this, so the update is that of
`torch.optim.RMSprop`. On large networks the update costs more than the gradient, and this kernel a
fraction of either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import jvp, vjp

from exhume.core.contract import ExhumeError

Update = Callable[[Sequence[Tensor], int | float], None]
"""(sums of gradients, count): one step on the parameters given at the start; may overwrite the sums."""
_TINY = 1e-38  # under a root, which has no slope at 0


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


@runtime_checkable
class Rule(Protocol):
    def start(self, weights: Tensor) -> Tensor:
        """(p,) to the state (k, p) before the first step."""
        ...

    def next(self, state: Tensor, gradient: Tensor, step: int, rate: float) -> Tensor: ...

    def kept(self, state: Tensor, gradient: Tensor) -> Tensor:
        """(r, p) what `push` and `pull` need to know of a step, the weights first."""
        ...

    def push(
        self, kept: Tensor, change: Tensor, d_gradient: Tensor, step: int, rate: float
    ) -> Tensor: ...

    def pull(
        self, kept: Tensor, after: Tensor, step: int, rate: float
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class HeavyBall:
    """v <- m·v + g + decay·theta, theta <- theta - rate·v; linear, so its derivative is itself."""

    momentum: float = 0.0
    decay: float = 0.0
    live: Tensor | None = None  # (p,) 0 for what is frozen

    def start(self, weights: Tensor) -> Tensor:
        return torch.stack([weights, torch.zeros_like(weights)])

    def next(self, state: Tensor, gradient: Tensor, step: int, rate: float) -> Tensor:
        weights, velocity = state
        slope = gradient + self.decay * weights if self.decay else gradient
        if self.live is not None:
            slope = slope * self.live
        velocity = self.momentum * velocity + slope
        return torch.stack([weights - rate * velocity, velocity])

    def kept(self, state: Tensor, gradient: Tensor) -> Tensor:
        return state[:1]

    def push(
        self, kept: Tensor, change: Tensor, d_gradient: Tensor, step: int, rate: float
    ) -> Tensor:
        return self.next(change, d_gradient, step, rate)

    def pull(self, kept: Tensor, after: Tensor, step: int, rate: float) -> tuple[Tensor, Tensor]:
        weights, velocity = after
        slope = velocity - rate * weights
        back = slope if self.live is None else slope * self.live
        before = weights + self.decay * back if self.decay else weights
        return torch.stack([before, self.momentum * slope]), back


@dataclass(frozen=True, eq=False)
class AdamRule:
    """Adam as `torch.optim.Adam` has it; weight decay is added to the gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0
    live: Tensor | None = None

    def start(self, weights: Tensor) -> Tensor:
        return torch.stack([weights, torch.zeros_like(weights), torch.zeros_like(weights)])

    def next(self, state: Tensor, gradient: Tensor, step: int, rate: float) -> Tensor:
        weights, mean, square = state
        slope = gradient + self.decay * weights if self.decay else gradient
        if self.live is not None:
            slope = slope * self.live
        mean = self.beta1 * mean + (1 - self.beta1) * slope
        square = self.beta2 * square + (1 - self.beta2) * slope.square()
        unbias = math.sqrt(1 - self.beta2 ** (step + 1))
        size = square.clamp_min(_TINY).sqrt() / unbias + self.eps
        moved = weights - rate / (1 - self.beta1 ** (step + 1)) * mean / size
        return torch.stack([moved, mean, square])

    def kept(self, state: Tensor, gradient: Tensor) -> Tensor:
        return torch.cat([state, gradient[None]])

    def push(
        self, kept: Tensor, change: Tensor, d_gradient: Tensor, step: int, rate: float
    ) -> Tensor:
        at = (kept[:3], kept[3])
        pushed: Tensor = jvp(lambda s, g: self.next(s, g, step, rate), at, (change, d_gradient))[1]
        return pushed

    def pull(self, kept: Tensor, after: Tensor, step: int, rate: float) -> tuple[Tensor, Tensor]:
        back = vjp(lambda s, g: self.next(s, g, step, rate), kept[:3], kept[3])[1]
        before, gradient = back(after)
        return before, gradient


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
