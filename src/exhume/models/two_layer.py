"""The two-layer network of Wang23: one hidden layer, no biases."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Layout
from exhume.models.activations import ACTIVATIONS, Activation, activation

# Wang23's counter-examples and an easy case; unbounded slopes, so nothing is trained with them
POLYNOMIALS = {
    "square": Activation("square", lambda x: x * x, lambda x, _: 2 * x),
    "cube": Activation("cube", lambda x: x**3, lambda x, _: 3 * x * x),
}


@dataclass(frozen=True)
class TwoLayer:
    """f(x) = sum_j a_j sigma(w_j · x), one such sum an output; inputs of any shape are flattened.

    Without biases every w_j · x is homogeneous in the record. `MLP` with one hidden layer is the same
    network with biases, and its layers have the same names.
    """

    input_shape: tuple[int, ...]
    width: int
    outputs: int = 1
    activation: str = "tanh"  # one of `ACTIVATIONS` or `POLYNOMIALS`

    def __post_init__(self) -> None:
        if self.activation not in {*ACTIVATIONS, *POLYNOMIALS}:
            raise ExhumeError(
                f"activation: {self.activation!r} is not one of "
                f"{', '.join([*ACTIVATIONS, *POLYNOMIALS])}"
            )
        if self.width < 1 or self.outputs < 1:
            raise ExhumeError(
                f"width, outputs: must be at least 1, got {self.width} and {self.outputs}"
            )

    @property
    def sigma(self) -> Activation:
        return POLYNOMIALS.get(self.activation) or activation(self.activation)

    @property
    def inputs(self) -> int:
        return math.prod(self.input_shape)

    @property
    def layout(self) -> Layout:
        shapes = ((self.width, self.inputs), (self.outputs, self.width))
        return Layout(("fc1.weight", "fc2.weight"), shapes)

    def initial(self, key: Key) -> Tensor:
        """(p,) float32, N(0, 1/fan_in)."""
        generator = key.fold("initial").generator()
        flat = [
            torch.randn(rows, columns, generator=generator).flatten() / math.sqrt(columns)
            for rows, columns in self.layout.shapes
        ]
        return torch.cat(flat)

    def build(self) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(self.inputs, self.width, bias=False),
            act1=self.sigma.module(),
            fc2=nn.Linear(self.width, self.outputs, bias=False),
        )
        return nn.Sequential(layers)

    def __str__(self) -> str:
        sizes = f"{self.inputs}-{self.width}-{self.outputs}"
        return f"two-layer {sizes}, {self.activation}, no biases"
