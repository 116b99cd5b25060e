"""The activations of Balle22 Table III, each with its derivative.

A derivative is a function of the input and the output, whichever makes it cheaper; stacked training
multiplies by it once a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.contract import ExhumeError

__all__ = ["ACTIVATIONS", "Activation", "Elementwise", "activation"]

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
_LEAK = 0.01
_FLOOR = -0.5


@dataclass(frozen=True)
class Activation:
    name: str
    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]  # (input, output) -> derivative, a new tensor

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


def _elu_slope(x: Tensor, y: Tensor) -> Tensor:
    return y.clamp(max=0).add_(1)  # e^x = y + 1 below zero


_ALL = (
    Activation("relu", F.relu, lambda x, y: (y > 0).to(y.dtype)),
    Activation("floor", lambda x: x.clamp(min=_FLOOR), lambda x, y: (x > _FLOOR).to(y.dtype)),
    Activation("elu", F.elu, _elu_slope),
    Activation("sigmoid", torch.sigmoid, lambda x, y: y * (1 - y)),
    Activation("softplus", F.softplus, lambda x, y: torch.sigmoid(x)),
    Activation("silu", F.silu, _silu_slope),
    Activation(
        "leaky-relu",
        lambda x: F.leaky_relu(x, _LEAK),
        lambda x, y: (y > 0).to(y.dtype).mul_(1 - _LEAK).add_(_LEAK),
    ),
    Activation("tanh", torch.tanh, lambda x, y: 1 - y * y),
    Activation("celu", F.celu, _elu_slope),
    Activation("selu", F.selu, _selu_slope),
    Activation("gelu", F.gelu, _gelu_slope),
    Activation("identity", lambda x: x, lambda x, y: torch.ones_like(x)),
)
ACTIVATIONS = {entry.name: entry for entry in _ALL}  # "floor" is the paper's max(-0.5, x)


def activation(name: str) -> Activation:
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ExhumeError(f"activation: {name!r} is not one of {', '.join(ACTIVATIONS)}") from None
