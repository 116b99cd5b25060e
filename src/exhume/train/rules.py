"""Optimisers as pure functions of their state, and the derivative of a step.

A state is (k, p): the weights first, then what the optimiser remembers. `push` carries a change of the
state and of the gradient through one step, `pull` is its transpose:

    push: (ds, dg) -> d s'                 pull: l' -> (l, l_g),     <l', push(ds, dg)> = <l, ds> + <l_g, dg>

The arithmetic is that of `train/optimisers.py`, out of place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import jvp, vjp

__all__ = ["AdamRule", "HeavyBall", "Rule"]

_TINY = 1e-38  # under a root, which has no slope at 0


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
