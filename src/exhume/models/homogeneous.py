"""Positively homogeneous networks: ReLU, and a bias in the first layer only (Buzaglo23).

With a bias in the first layer alone, scaling all L weight matrices and the bias by a scales the outputs by
a^L. That is what the theory of implicit bias asks for, and what an MLP with biases everywhere is not.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Layout
from exhume.models.matrices import Matrices


@dataclass(frozen=True)
class HomogeneousMLP:
    """Fully connected, ReLU, bias in the first layer only; inputs of any shape are flattened.

    Weights are drawn as `nn.Linear` does, uniform within ±1/sqrt(fan_in); with `first_scale` the first
    layer and its bias are drawn from N(0, first_scale²) instead (Buzaglo23's code: 1e-4).
    """

    input_shape: tuple[int, ...]
    hidden: tuple[int, ...]
    outputs: int
    first_scale: float | None = None

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ExhumeError("hidden: at least one hidden layer is needed, got none")
        if any(width < 1 for width in self.sizes):
            raise ExhumeError(f"hidden: widths must be at least 1, got {self.sizes}")
        if self.first_scale is not None and self.first_scale <= 0:
            raise ExhumeError(f"first_scale: {self.first_scale} given, it must be above 0")

    @property
    def sizes(self) -> tuple[int, ...]:
        return (math.prod(self.input_shape), *self.hidden, self.outputs)

    @property
    def layout(self) -> Layout:
        names, shapes = (
            ["fc1.weight", "fc1.bias"],
            [(self.sizes[1], self.sizes[0]), self.sizes[1:2]],
        )
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.sizes[1:]), start=2):
            names.append(f"fc{layer}.weight")
            shapes.append((fan_out, fan_in))
        return Layout(tuple(names), tuple(shapes))

    def initial(self, key: Key) -> Tensor:
        """(p,) float32."""
        generator = key.fold("initial").generator()
        flat = []
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if name.startswith("fc1.") and self.first_scale is not None:
                flat.append(self.first_scale * torch.randn(shape, generator=generator).flatten())
            else:
                fan_in = self.sizes[0] if len(shape) == 1 else shape[1]
                bound = 1 / math.sqrt(fan_in)
                flat.append(
                    torch.empty(math.prod(shape)).uniform_(-bound, bound, generator=generator)
                )
        return torch.cat(flat)

    def matrices(self, parameters: Tensor) -> Matrices:
        """(p,) to the layers, as views."""
        first, bias, *later = self.layout.split(parameters).values()
        return Matrices(first, bias, tuple(later))

    def join(self, matrices: Matrices) -> Tensor:
        """The inverse of `matrices`: (p,)."""
        parts = (matrices.first, matrices.bias, *matrices.later)
        return self.layout.join(dict(zip(self.layout.names, parts, strict=True)))

    def build(self) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        pairs = list(pairwise(self.sizes))
        for layer, (fan_in, fan_out) in enumerate(pairs, start=1):
            layers[f"fc{layer}"] = nn.Linear(fan_in, fan_out, bias=layer == 1)
            if layer < len(pairs):
                layers[f"act{layer}"] = nn.ReLU()
        return nn.Sequential(layers)

    def __str__(self) -> str:
        small = (
            "" if self.first_scale is None else f", first layer from N(0, {self.first_scale:g}²)"
        )
        return f"MLP {'-'.join(str(size) for size in self.sizes)}, relu, one bias{small}"
