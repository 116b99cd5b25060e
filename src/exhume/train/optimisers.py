"""Optimisers: as values of a recipe, and as rules of one step with its derivative.

A rule's `next` is the arithmetic, out of place, on the weights and what the rule remembers. It takes the
*sum* of the records' gradients and the number to divide it by, so that no pass over the records' errors is
spent on a division. Stacks of models (`updating`), a client's local steps and trainings that are
differentiated all take their steps from here.

Where a state is (k, p), the weights first, `push` carries a change of the state and of the gradient through
one step, `pull` is its transpose:

    push: (ds, dg) -> d s'                 pull: l' -> (l, l_g),     <l', push(ds, dg)> = <l, ds> + <l_g, dg>

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

import torch
from torch import Tensor
from torch.func import jvp, vjp

from exhume.core.contract import ExhumeError

Update = Callable[[Sequence[Tensor], int | float], None]
"""(sums of gradients, count): one step on the parameters given at the start."""
_TINY = 1e-38  # under a root, which has no slope at 0
SCHEDULES = ("constant", "linear", "cosine", "step")
_THIRDS = 3  # parts of a schedule by steps, each with a tenth of the rate of the one before


def rates_of(schedule: str, rate: float, steps: int) -> list[float]:
    """One for each step, from `rate` on."""
    done = [k / steps for k in range(steps)]
    if schedule == "linear":
        return [rate * (1 - share) for share in done]
    if schedule == "cosine":
        return [rate * (1 + math.cos(math.pi * share)) / 2 for share in done]
    if schedule == "step":
        return [rate * 0.1 ** int(_THIRDS * share) for share in done]
    return [rate] * steps


@dataclass(frozen=True)
class Descent:
    """Heavy-ball gradient descent on the mean loss: v <- m·v + g, theta <- theta - rate·v."""

    steps: int = 100
    rate: float = 0.1
    momentum: float = 0.0  # Balle22: 0.9
    weight_decay: float = 0.0  # added to the gradient
    schedule: str = "constant"

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    @property
    def rates(self) -> list[float]:
        return rates_of(self.schedule, self.rate, self.steps)

    @property
    def rule(self) -> HeavyBall:
        return HeavyBall(self.momentum, self.weight_decay)

    def __str__(self) -> str:
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        rate = _rate_in_words(self.rate, self.schedule)
        return f"{self.steps} steps, {rate}, momentum {self.momentum:g}{decay}"


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
    schedule: str = "constant"

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ExhumeError(f"{name}: {value} given, needed in [0, 1)")

    @property
    def rates(self) -> list[float]:
        return rates_of(self.schedule, self.rate, self.steps)

    @property
    def rule(self) -> AdamRule:
        decay, decoupled = self.weight_decay, self.decoupled
        return AdamRule(self.beta1, self.beta2, self.epsilon, decay, decoupled=decoupled)

    def __str__(self) -> str:
        kind = "decoupled weight decay" if self.decoupled else "weight decay"
        decay = f", {kind} {self.weight_decay:g}" if self.weight_decay else ""
        rate = _rate_in_words(self.rate, self.schedule)
        return f"{self.steps} steps, {rate}, Adam ({self.beta1:g}, {self.beta2:g}){decay}"


Optimiser = Descent | Adam


def _rate_in_words(rate: float, schedule: str) -> str:
    return f"rate {rate:g}{'' if schedule == 'constant' else f' ({schedule})'}"


def _check_steps(steps: int) -> None:
    if steps < 0:
        raise ExhumeError(f"steps: {steps} given, at least 0 needed")


def updating(optimiser: Optimiser, parameters: Sequence[Tensor]) -> Update:
    """Steps in place on a stack of models, tensor by tensor."""
    rule, rates = optimiser.rule, optimiser.rates
    remembered = [rule.start(tensor)[1:] for tensor in parameters]
    done = 0

    def update(sums: Sequence[Tensor], count: int | float) -> None:
        nonlocal done
        for place, (tensor, total) in enumerate(zip(parameters, sums, strict=True)):
            state = (tensor, *remembered[place])
            moved, *remembered[place] = rule.next(state, total, done, rates[done], count)
            tensor.copy_(moved)
        done += 1

    return update


@dataclass(frozen=True, eq=False)
class HeavyBall:
    """v <- m·v + g + decay·theta, theta <- theta - rate·v; linear, so its derivative is itself."""

    momentum: float = 0.0
    decay: float = 0.0
    live: Tensor | None = None  # (p,) 0 for what is frozen

    def start(self, weights: Tensor) -> list[Tensor]:
        return [weights, torch.zeros_like(weights)]

    def next(
        self,
        state: Sequence[Tensor] | Tensor,
        total: Tensor,
        step: int,
        rate: float,
        count: float = 1,
    ) -> list[Tensor]:
        weights, velocity = state
        velocity = torch.add(self.momentum * velocity, total, alpha=1 / count)
        if self.decay:
            velocity = torch.add(velocity, weights, alpha=self.decay)
        if self.live is not None:
            velocity = velocity * self.live
        return [torch.sub(weights, velocity, alpha=rate), velocity]

    def kept(self, state: Tensor, gradient: Tensor) -> Tensor:
        """(r, p) what `push` and `pull` need to know of a step, the weights first."""
        return state[:1]

    def push(
        self, kept: Tensor, change: Tensor, d_gradient: Tensor, step: int, rate: float
    ) -> Tensor:
        return torch.stack(self.next(change, d_gradient, step, rate))

    def pull(self, kept: Tensor, after: Tensor, step: int, rate: float) -> tuple[Tensor, Tensor]:
        weights, velocity = after
        slope = velocity - rate * weights
        back = slope if self.live is None else slope * self.live
        before = weights + self.decay * back if self.decay else weights
        return torch.stack([before, self.momentum * slope]), back


@dataclass(frozen=True, eq=False)
class AdamRule:
    """Adam as `torch.optim.Adam` has it, or AdamW as `torch.optim.AdamW`."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0
    live: Tensor | None = None
    decoupled: bool = False

    def start(self, weights: Tensor) -> list[Tensor]:
        return [weights, torch.zeros_like(weights), torch.zeros_like(weights)]

    def next(
        self,
        state: Sequence[Tensor] | Tensor,
        total: Tensor,
        step: int,
        rate: float,
        count: float = 1,
    ) -> list[Tensor]:
        weights, mean, square = state
        slope = total / count
        if self.decay and not self.decoupled:
            slope = torch.add(slope, weights, alpha=self.decay)
        if self.live is not None:
            slope = slope * self.live
        if self.decoupled:
            live = 1.0 if self.live is None else self.live
            weights = weights * (1 - rate * self.decay * live)
        mean = torch.lerp(mean, slope, 1 - self.beta1)
        square = torch.addcmul(self.beta2 * square, slope, slope, value=1 - self.beta2)
        unbias = math.sqrt(1 - self.beta2 ** (step + 1))
        size = square.clamp_min(_TINY).sqrt() / unbias + self.eps
        length = rate / (1 - self.beta1 ** (step + 1))
        return [torch.addcdiv(weights, mean, size, value=-length), mean, square]

    def kept(self, state: Tensor, gradient: Tensor) -> Tensor:
        return torch.cat([state, gradient[None]])

    def push(
        self, kept: Tensor, change: Tensor, d_gradient: Tensor, step: int, rate: float
    ) -> Tensor:
        def after(state: Tensor, gradient: Tensor) -> Tensor:
            return torch.stack(self.next(state, gradient, step, rate))

        pushed: Tensor = jvp(after, (kept[:3], kept[3]), (change, d_gradient))[1]
        return pushed

    def pull(self, kept: Tensor, after: Tensor, step: int, rate: float) -> tuple[Tensor, Tensor]:
        def ahead(state: Tensor, gradient: Tensor) -> Tensor:
            return torch.stack(self.next(state, gradient, step, rate))

        before, gradient = vjp(ahead, kept[:3], kept[3])[1](after)
        return before, gradient


Rule = HeavyBall | AdamRule


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
