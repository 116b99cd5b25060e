"""Convolutional networks (Balle22 Table V)."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Layout
from exhume.models.activations import activation
from exhume.models.mlp import check_kind, dense_layout, drawn_parameters


@dataclass(frozen=True)
class CNN:
    """Convolutions without padding, then fully connected layers; one activation after all but the last.

    The defaults are Balle22's released model for CIFAR-10: 32 -> 15 -> 12 pixels a side, 55,208
    parameters. `init` as in `MLP`; the fan-in of a convolution is channels x kernel x kernel.
    """

    input_shape: tuple[int, ...] = (3, 32, 32)
    channels: tuple[int, ...] = (16, 32)
    kernels: tuple[int, ...] = (4, 4)
    strides: tuple[int, ...] = (2, 1)
    hidden: tuple[int, ...] = (10,)
    outputs: int = 10
    activation: str = "elu"
    init: str = "lecun"

    def __post_init__(self) -> None:
        check_kind(self.activation, self.init)
        if len(self.input_shape) != 3:
            raise ExhumeError(
                f"input_shape: {self.input_shape} given, channels x height x width needed"
            )
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise ExhumeError(
                f"channels {self.channels}, kernels {self.kernels} and strides {self.strides} "
                "must be equally many"
            )
        least = min(*self.channels, *self.kernels, *self.strides, *self.hidden, self.outputs, 1)
        if least < 1:
            raise ExhumeError(f"channels, kernels, strides and widths must be at least 1: {self}")
        if min(self.features[1:]) < 1:
            raise ExhumeError(
                f"kernels: {self.kernels} with strides {self.strides} leave nothing of "
                f"{self.input_shape[1]}x{self.input_shape[2]}"
            )

    @property
    def outlines(self) -> list[tuple[int, int, int]]:
        """Channels, height and width of the input and after each convolution."""
        channels, height, width = self.input_shape
        shapes = [(channels, height, width)]
        for count, kernel, stride in zip(self.channels, self.kernels, self.strides, strict=True):
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
            shapes.append((count, height, width))
        return shapes

    @property
    def features(self) -> tuple[int, int, int]:
        """Channels, height and width of what the convolutions leave."""
        return self.outlines[-1]

    @property
    def places(self) -> tuple[int, ...]:
        """The number of places at which each convolution is applied."""
        return tuple(height * width for _, height, width in self.outlines[1:])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the fully connected part."""
        return (math.prod(self.features), *self.hidden, self.outputs)

    @property
    def layout(self) -> Layout:
        names, shapes = [], []
        pairs = pairwise((self.input_shape[0], *self.channels))
        for layer, ((before, after), kernel) in enumerate(zip(pairs, self.kernels, strict=True), 1):
            names += [f"conv{layer}.weight", f"conv{layer}.bias"]
            shapes += [(after, before, kernel, kernel), (after,)]
        dense = dense_layout(self.sizes)
        return Layout((*names, *dense.names), (*shapes, *dense.shapes))

    def initial(self, key: Key) -> Tensor:
        """(p,) float32."""
        return drawn_parameters(self.layout, self.init, key)

    def build(self) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        pairs = pairwise((self.input_shape[0], *self.channels))
        taps = zip(pairs, self.kernels, self.strides, strict=True)
        for layer, ((before, after), kernel, stride) in enumerate(taps, 1):
            layers[f"conv{layer}"] = nn.Conv2d(before, after, kernel, stride)
            layers[f"conv{layer}_act"] = activation(self.activation).module()
        layers["flatten"] = nn.Flatten()
        widths = list(pairwise(self.sizes))
        for layer, (fan_in, fan_out) in enumerate(widths, 1):
            layers[f"fc{layer}"] = nn.Linear(fan_in, fan_out)
            if layer < len(widths):
                layers[f"fc{layer}_act"] = activation(self.activation).module()
        return nn.Sequential(layers)

    def __str__(self) -> str:
        taps = zip(self.channels, self.kernels, self.strides, strict=True)
        convolutions = ", ".join(f"{c} of {k}x{k} stride {s}" for c, k, s in taps)
        widths = "-".join(str(size) for size in (*self.hidden, self.outputs))
        return f"CNN {convolutions}, then {widths}, {self.activation}"
