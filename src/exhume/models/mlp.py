"""Fully connected networks (Balle22 Table IV, Buzaglo23, Wang23)."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from exhume.contract import ExhumeError, Key, Layout
from exhume.models.activations import activation

__all__ = ["MLP"]


@dataclass(frozen=True)
class MLP:
    """Linear layers with one activation between them; inputs of any shape are flattened.

    init: "lecun" draws weights from N(0, 1/fan_in) with zero biases, as the papers' libraries do;
    "torch" is `nn.Linear`'s default, uniform within ±1/sqrt(fan_in) for weights and biases.
    """

    input_shape: tuple[int, ...]
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "elu"
    init: str = "lecun"

    def __post_init__(self) -> None:
        activation(self.activation)
        if self.init not in ("lecun", "torch"):
            raise ExhumeError(f"init: {self.init!r} is not one of lecun, torch")
        if any(width < 1 for width in self.sizes):
            raise ExhumeError(f"hidden: widths must be at least 1, got {self.sizes}")

    @property
    def sizes(self) -> tuple[int, ...]:
        return (math.prod(self.input_shape), *self.hidden, self.outputs)

    @property
    def layout(self) -> Layout:
        names, shapes = [], []
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.sizes), start=1):
            names += [f"fc{layer}.weight", f"fc{layer}.bias"]
            shapes += [(fan_out, fan_in), (fan_out,)]
        return Layout(tuple(names), tuple(shapes))

    def initial(self, key: Key) -> Tensor:
        """(p,) float32."""
        generator = key.fold("initial").generator()
        flat = []
        for fan_in, fan_out in pairwise(self.sizes):
            if self.init == "lecun":
                weight = torch.randn(fan_out, fan_in, generator=generator) / math.sqrt(fan_in)
                bias = torch.zeros(fan_out)
            else:
                bound = 1 / math.sqrt(fan_in)
                weight = torch.empty(fan_out, fan_in).uniform_(-bound, bound, generator=generator)
                bias = torch.empty(fan_out).uniform_(-bound, bound, generator=generator)
            flat += [weight.flatten(), bias]
        return torch.cat(flat)

    def build(self) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        pairs = list(pairwise(self.sizes))
        for layer, (fan_in, fan_out) in enumerate(pairs, start=1):
            layers[f"fc{layer}"] = nn.Linear(fan_in, fan_out)
            if layer < len(pairs):
                layers[f"act{layer}"] = activation(self.activation).module()
        return nn.Sequential(layers)

    def __str__(self) -> str:
        return f"MLP {'-'.join(str(size) for size in self.sizes)}, {self.activation}"
