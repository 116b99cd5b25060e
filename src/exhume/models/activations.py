"""The activations of Balle22 Table III, each with its derivatives.

A derivative is a function of the input and the output, whichever makes it cheaper; stacked training
multiplies by it once a step. An activation with a kink has no second derivative there: `gated` makes its
step a sigmoid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
_LEAK = 0.01
_FLOOR = -0.5


@dataclass(frozen=True)
class Activation:
    name: str
    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]  # (input, output) -> derivative, a new tensor
    curve: Callable[[Tensor, Tensor], Tensor] | None = None  # second derivative; None: a kink
    kink: tuple[float, float, float] = (0.0, 0.0, 1.0)  # where, and the slopes before and after it

    def gated(self, x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
        """The derivative and its own derivative; a kink is sigmoid(alpha x) wide."""
        if self.curve is not None:
            return self.slope(x, y), self.curve(x, y)
        where, low, high = self.kink
        gate = torch.sigmoid(alpha * (x - where))
        return low + (high - low) * gate, (gate * (1 - gate)).mul_(alpha * (high - low))

    def module(self) -> nn.Module:
        return Elementwise(self)


class Elementwise(nn.Module):
    """An activation as a layer."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation.apply(x)

    def extra_repr(self) -> str:
        return self.activation.name


def _silu_slope(x: Tensor, _: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 + x * (1 - gate))


def _selu_slope(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > 0, _SELU_SCALE, y + _SELU_SCALE * _SELU_ALPHA)


def _gelu_slope(x: Tensor, _: Tensor) -> Tensor:
    cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return cdf + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_curve(x: Tensor, _: Tensor) -> Tensor:
    square = x * x
    return (2 - square) * torch.exp(-0.5 * square) / math.sqrt(2 * math.pi)


def _silu_curve(x: Tensor, _: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 - gate) * (2 + x * (1 - 2 * gate))


def _softplus_curve(x: Tensor, _: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 - gate)


def _elu_curve(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > 0, 0.0, y + 1)


def _selu_curve(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > 0, 0.0, y + _SELU_SCALE * _SELU_ALPHA)


def _elu_slope(x: Tensor, y: Tensor) -> Tensor:
    return y.clamp(max=0).add_(1)  # e^x = y + 1 below zero


_ALL = (
    Activation("relu", F.relu, lambda x, y: (y > 0).to(y.dtype)),
    Activation(
        "floor",
        lambda x: x.clamp(min=_FLOOR),
        lambda x, y: (x > _FLOOR).to(y.dtype),
        kink=(_FLOOR, 0.0, 1.0),
    ),
    Activation("elu", F.elu, _elu_slope, _elu_curve),
    Activation(
        "sigmoid", torch.sigmoid, lambda x, y: y * (1 - y), lambda x, y: y * (1 - y) * (1 - 2 * y)
    ),
    Activation("softplus", F.softplus, lambda x, y: torch.sigmoid(x), _softplus_curve),
    Activation("silu", F.silu, _silu_slope, _silu_curve),
    Activation(
        "leaky-relu",
        lambda x: F.leaky_relu(x, _LEAK),
        lambda x, y: (y > 0).to(y.dtype).mul_(1 - _LEAK).add_(_LEAK),
        kink=(0.0, _LEAK, 1.0),
    ),
    Activation("tanh", torch.tanh, lambda x, y: 1 - y * y, lambda x, y: -2 * y * (1 - y * y)),
    Activation("celu", F.celu, _elu_slope, _elu_curve),
    Activation("selu", F.selu, _selu_slope, _selu_curve),
    Activation("gelu", F.gelu, _gelu_slope, _gelu_curve),
    Activation("identity", lambda x: x, lambda x, y: torch.ones_like(x), lambda x, y: 0 * x),
)
ACTIVATIONS = {entry.name: entry for entry in _ALL}  # "floor" is the paper's max(-0.5, x)


def activation(name: str) -> Activation:
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ExhumeError(f"activation: {name!r} is not one of {', '.join(ACTIVATIONS)}") from None
