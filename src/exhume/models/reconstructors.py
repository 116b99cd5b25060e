"""The networks that map features of released weights to a record (Balle22 Tables IV and VI).

A reconstructor is a value (`Dense`, `Deconv`); `build` makes the module, its weights drawn from a key
by N(0, 1/fan_in) with zero biases, as the authors' library does (theirs truncates the normal).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key

_OUTPUTS: dict[str, Callable[[], nn.Module]] = {"sigmoid": nn.Sigmoid, "linear": nn.Identity}


@dataclass(frozen=True)
class Dense:
    """Fully connected with ReLU: the paper's network for MNIST."""

    hidden: tuple[int, ...] = (1000, 1000)  # Balle22 Table IV
    output: str = "sigmoid"  # as the authors' notebook; "linear" for records outside [0, 1]

    def __post_init__(self) -> None:
        _legal_output(self.output)
        if any(width < 1 for width in self.hidden):
            raise ExhumeError(f"hidden: widths must be at least 1, got {self.hidden}")

    def build(self, inputs: int, shape: tuple[int, ...], key: Key) -> nn.Module:
        """(n, inputs) features to (n, *shape) records."""

        def plain() -> nn.Module:
            layers: list[nn.Module] = []
            for fan_in, fan_out in pairwise((inputs, *self.hidden)):
                layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
            last = (inputs, *self.hidden)[-1]
            layers += [nn.Linear(last, math.prod(shape)), _OUTPUTS[self.output]()]
            return nn.Sequential(*layers, nn.Unflatten(1, shape))

        return drawn(plain, key)


@dataclass(frozen=True)
class Deconv:
    """A linear layer, then two transposed convolutions that double the side: the paper's for CIFAR-10.

    FC -> 64 channels of a quarter of the side -> tconv 32, 5x5, s2 -> tconv c, 5x5, s2.
    """

    channels: tuple[int, int] = (64, 32)  # Balle22 Table VI
    output: str = "sigmoid"  # not stated in the paper

    def __post_init__(self) -> None:
        _legal_output(self.output)
        if any(channels < 1 for channels in self.channels):
            raise ExhumeError(f"channels: must be at least 1, got {self.channels}")

    def build(self, inputs: int, shape: tuple[int, ...], key: Key) -> nn.Module:
        """(n, inputs) features to (n, c, h, w) images, h and w multiples of 4."""
        if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
            raise ExhumeError(
                f"records of shape {shape}: the convolutional reconstructor draws images (c, h, w) "
                "with h and w multiples of 4"
            )
        wide, narrow = self.channels
        side = (wide, shape[1] // 4, shape[2] // 4)

        def plain() -> nn.Module:
            return nn.Sequential(
                nn.Linear(inputs, math.prod(side)),
                nn.ReLU(),
                nn.Unflatten(1, side),
                nn.ConvTranspose2d(wide, narrow, 5, stride=2, padding=2, output_padding=1),
                nn.ReLU(),
                nn.ConvTranspose2d(narrow, shape[0], 5, stride=2, padding=2, output_padding=1),
                _OUTPUTS[self.output](),
            )

        return drawn(plain, key)


def drawn(build: Callable[[], nn.Module], key: Key) -> nn.Module:
    """A module with weights from N(0, 1/fan_in) and zero biases; the global generator is not touched."""
    with torch.device("meta"):
        module = build()
    module = module.to_empty(device="cpu")
    generator = key.fold("reconstructor").generator()
    with torch.no_grad():
        for layer in module.modules():
            weight = getattr(layer, "weight", None)
            if not isinstance(weight, Tensor):
                continue
            weight.normal_(0, 1 / math.sqrt(_fan_in(layer, weight)), generator=generator)
            bias = getattr(layer, "bias", None)
            if isinstance(bias, Tensor):
                bias.zero_()
    return module


def _fan_in(layer: nn.Module, weight: Tensor) -> float:
    """How many products one output sums up."""
    if isinstance(layer, nn.ConvTranspose2d):
        return weight.shape[0] * math.prod(weight.shape[2:]) / math.prod(layer.stride)
    return float(math.prod(weight.shape[1:]))


def _legal_output(output: str) -> None:
    if output not in _OUTPUTS:
        raise ExhumeError(f"output: {output!r} is not one of {', '.join(_OUTPUTS)}")
