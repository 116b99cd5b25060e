"""ReLU gates whose jump is spread out in second derivatives only.

A gate jumps from 0 to 1, so automatic differentiation says that it never moves. But among a thousand
records some are always near their kink: when the weights move a little, a share of the gates in
proportion flips, and on average

    E[ d gate ] = density(0) · dx

Counting every record near its kink by a kernel of some width gives this average. Values and first
derivatives are those of the network itself: training is unchanged, only its linearisation sees flips
coming. The width should be about as far as pre-activations may still move.

Or gates that are free: `free_gates` adds to every one a number of its own, zero as long as nobody says
otherwise, of which the value of the network does not depend but its gradient does,

    backward(slope) = slope · (gate + push)

so that derivatives with respect to the pushes say what gates that jump would do to training.

Replaced are the modules `nn.ReLU` and `nn.LeakyReLU` and ours of that kind; a call of `F.relu` within a
forward stays as it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from exhume.models.activations import Elementwise

__all__ = ["FreeGate", "free_gates", "smooth_gates"]

_LEAKS = {"relu": 0.0, "leaky-relu": 0.01}  # of our own activations


def smooth_gates(module: nn.Module, width: float) -> tuple[nn.Module, int]:
    """A copy with its gates replaced, and their number. width: in deviations of what enters a gate."""
    return _replaced(module, lambda leak: _SmoothGate(leak, width))


def free_gates(module: nn.Module) -> tuple[nn.Module, int]:
    """A copy with gates that can be pushed, and their number."""
    return _replaced(module, FreeGate)


def _replaced(module: nn.Module, make: Callable[[float], nn.Module]) -> tuple[nn.Module, int]:
    holder = nn.Sequential(copy.deepcopy(module))
    count = 0
    for parent in list(holder.modules()):
        for name, child in list(parent.named_children()):
            leak = _leak(child)
            if leak is not None:
                setattr(parent, name, make(leak))
                count += 1
    return holder[0], count


def _leak(module: nn.Module) -> float | None:
    """Slope below the kink; None: no gate."""
    if isinstance(module, nn.ReLU):
        return 0.0
    if isinstance(module, nn.LeakyReLU):
        return float(module.negative_slope)
    return _LEAKS.get(module.activation.name) if isinstance(module, Elementwise) else None


class _SmoothGate(nn.Module):
    def __init__(self, leak: float, width: float) -> None:
        super().__init__()
        self.leak, self.width = leak, width

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Gated.apply(x, self.leak, self.width)  # type: ignore[no-untyped-call]
        return found


class FreeGate(nn.Module):
    """Keeps what entered it last, and the pushes that it was given: zeros, to be differentiated by."""

    def __init__(self, leak: float) -> None:
        super().__init__()
        self.leak = leak
        self.entered: Tensor | None = None
        self.push: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.entered, self.push = x.detach(), torch.zeros_like(x).requires_grad_()
        found: Tensor = _Pushed.apply(x, self.push, self.leak)  # type: ignore[no-untyped-call]
        return found


class _Pushed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, push: Tensor, leak: float) -> Tensor:
        ctx.save_for_backward(x, push)
        ctx.leak = leak
        return torch.where(x > 0, x, leak * x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        x, push = ctx.saved_tensors
        return slope * (torch.where(x > 0, 1.0, ctx.leak).to(x.dtype) + push), None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, leak: float, width: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.leak, ctx.width = leak, width
        return torch.where(x > 0, x, leak * x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return slope * _Gate.apply(x, ctx.leak, ctx.width), None, None  # type: ignore[no-untyped-call]


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, leak: float, width: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.leak, ctx.width = leak, width
        return torch.where(x > 0, 1.0, leak).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        wide = (ctx.width * x.std()).clamp_min(1e-12)
        kernel = torch.exp(-0.5 * (x / wide).square()) / (wide * math.sqrt(2 * math.pi))
        return slope * (1 - ctx.leak) * kernel, None, None
