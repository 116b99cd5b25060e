"""A network in which adapters of low rank, and perhaps whole tensors, are trained; all else stands still.

    W = W_0 + s B A        B begins at 0, so that A's gradient is 0 in the first step, and A stays where it is

Its parameters are B of every adapted layer and what is trained whole: what fine-tuning with LoRA changes.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError

__all__ = ["AdaptedLinear", "adapted"]


class AdaptedLinear(nn.Module):
    """x (W_0 + s B A)^T + b, of which A is no parameter."""

    first: Tensor

    def __init__(self, layer: nn.Linear, first: Tensor, scaling: float) -> None:
        super().__init__()
        self.register_buffer("first", first.detach().to(layer.weight.dtype).clone())
        self.second = nn.Parameter(layer.weight.new_zeros(len(layer.weight), len(first)))
        self.weight, self.bias = layer.weight, layer.bias
        self.scaling = scaling

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(x, self.first), self.second)
        return F.linear(x, self.weight, self.bias) + self.scaling * low


def adapted(
    module: nn.Module, first: Mapping[str, Tensor], scaling: float, whole: Collection[str] = ()
) -> nn.Module:
    """A copy of the module at its present weights, with adapters that add nothing yet.

    first: A (r, in) by the layer's name; whole: names of parameters that are trained as they are.
    """
    own = copy.deepcopy(module)
    for name, a in first.items():
        layer = own.get_submodule(name)
        if not isinstance(layer, nn.Linear):
            raise ExhumeError(
                f"adapter: {name} is a {type(layer).__name__}; adapters of nn.Linear are read so far"
            )
        holder, _, last = name.rpartition(".")
        setattr(own.get_submodule(holder), last, AdaptedLinear(layer, a, scaling))
    for name, part in own.named_modules():
        for short, parameter in list(part.named_parameters(recurse=False)):
            full = f"{name}.{short}" if name else short
            if short != "second" and full not in whole:
                delattr(part, short)
                part.register_buffer(short, parameter.detach().clone())
    if not any(True for _ in own.parameters()):
        raise ExhumeError("adapter: it adapts no layer of this model")
    return own
