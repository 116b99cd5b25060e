"""ReLU gates whose jump is spread out in second derivatives only.

A gate jumps from 0 to 1, so automatic differentiation says that it never moves. But among a thousand
records some are always near their kink: when the weights move a little, a share of the gates in
proportion flips, and on average

    E[ d gate ] = density(0) · dx

Counting every record near its kink by a kernel of some width gives this average. Values and first
derivatives are those of the network itself: training is unchanged, only its linearisation sees flips
coming. The width should be about as far as pre-activations may still move.

Replaced are the modules `nn.ReLU` and `nn.LeakyReLU` and ours of that kind; a call of `F.relu` within a
forward stays as it is.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from exhume.models.activations import Elementwise

__all__ = ["smooth_gates"]

_LEAKS = {"relu": 0.0, "leaky-relu": 0.01}  # of our own activations


def smooth_gates(module: nn.Module, width: float) -> tuple[nn.Module, int]:
    """A copy with its gates replaced, and their number. width: in deviations of what enters a gate."""
    holder = nn.Sequential(copy.deepcopy(module))
    count = 0
    for parent in list(holder.modules()):
        for name, child in list(parent.named_children()):
            leak = _leak(child)
            if leak is not None:
                setattr(parent, name, _SmoothGate(leak, width))
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
