"""Fully connected networks (Balle22 Table IV, Buzaglo23, Wang23)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Layout
from exhume.models.activations import activation
from exhume.models.matrices import Matrices


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
        check_kind(self.activation, self.init)
        if any(width < 1 for width in self.sizes):
            raise ExhumeError(f"hidden: widths must be at least 1, got {self.sizes}")

    @property
    def sizes(self) -> tuple[int, ...]:
        return (math.prod(self.input_shape), *self.hidden, self.outputs)

    @property
    def layout(self) -> Layout:
        return dense_layout(self.sizes)

    def initial(self, key: Key) -> Tensor:
        """(p,) float32."""
        return drawn_parameters(self.layout, self.init, key)

    def matrices(self, parameters: Tensor) -> Matrices:
        """(p,) to the layers, as views."""
        if not self.hidden:
            raise ExhumeError("hidden: at least one hidden layer is needed, got none")
        first, bias, *later = self.layout.split(parameters).values()
        return Matrices(
            first, bias, tuple(later[::2]), tuple(later[1::2]), activation(self.activation)
        )

    def join(self, matrices: Matrices) -> Tensor:
        """The inverse of `matrices`: (p,)."""
        parts = [matrices.first, matrices.bias]
        for weight, bias in zip(matrices.later, matrices.later_biases, strict=True):
            parts += [weight, bias]
        return self.layout.join(dict(zip(self.layout.names, parts, strict=True)))

    def build(self) -> nn.Module:
        return _chain(self.sizes, activation(self.activation).module, biases=len(self.sizes))

    def __str__(self) -> str:
        return f"MLP {'-'.join(str(size) for size in self.sizes)}, {self.activation}"


@dataclass(frozen=True)
class HomogeneousMLP:
    """Positively homogeneous: ReLU, and a bias in the first layer only; inputs of any shape are flattened.

    Scaling all L weight matrices and the bias by a scales the outputs by a^L, which is what the theory of
    implicit bias asks for (Buzaglo23), and what an MLP with biases everywhere is not.

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
        return _chain(self.sizes, nn.ReLU, biases=1)

    def __str__(self) -> str:
        small = (
            "" if self.first_scale is None else f", first layer from N(0, {self.first_scale:g}²)"
        )
        return f"MLP {'-'.join(str(size) for size in self.sizes)}, relu, one bias{small}"


def _chain(sizes: tuple[int, ...], act: Callable[[], nn.Module], *, biases: int) -> nn.Module:
    """Linear layers between these widths, an activation after all but the last. biases: how many have one."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    pairs = list(pairwise(sizes))
    for layer, (fan_in, fan_out) in enumerate(pairs, start=1):
        layers[f"fc{layer}"] = nn.Linear(fan_in, fan_out, bias=layer <= biases)
        if layer < len(pairs):
            layers[f"act{layer}"] = act()
    return nn.Sequential(layers)


def check_kind(activation_name: str, init: str) -> None:
    activation(activation_name)
    if init not in ("lecun", "torch"):
        raise ExhumeError(f"init: {init!r} is not one of lecun, torch")


def dense_layout(sizes: tuple[int, ...]) -> Layout:
    """Weight and bias of each layer between these widths."""
    names, shapes = [], []
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes), start=1):
        names += [f"fc{layer}.weight", f"fc{layer}.bias"]
        shapes += [(fan_out, fan_in), (fan_out,)]
    return Layout(tuple(names), tuple(shapes))


def drawn_parameters(layout: Layout, init: str, key: Key) -> Tensor:
    """(p,) float32 of a layout in which each weight has its bias behind it; init: as in `MLP`."""
    generator = key.fold("initial").generator()
    flat = []
    for weight, bias in zip(layout.shapes[::2], layout.shapes[1::2], strict=True):
        root = math.sqrt(math.prod(weight[1:]))  # of the fan-in
        if init == "lecun":
            flat += [torch.randn(weight, generator=generator).flatten() / root, torch.zeros(bias)]
        else:
            flat += [
                torch.empty(shape).uniform_(-1 / root, 1 / root, generator=generator).flatten()
                for shape in (weight, bias)
            ]
    return torch.cat(flat)
