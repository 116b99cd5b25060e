"""The layers of a fully connected network as matrices, whatever its activation and its biases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.core.contract import Architecture
from exhume.models.activations import Activation, activation

_RELU = activation("relu")


@dataclass(frozen=True, eq=False)
class Matrices:
    """The parameters of one network, layer by layer."""

    first: Tensor  # (k, d)
    bias: Tensor  # (k,)
    later: tuple[Tensor, ...]  # (outputs, inputs) each
    later_biases: tuple[Tensor, ...] = ()  # (outputs,) each; empty: the later layers have none
    act: Activation = _RELU

    def forward(self, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
        """(n, d) to what enters each activation, (n, width) each, and the outputs (n, c)."""
        return self.after_first(inputs @ self.first.T + self.bias)

    def after_first(self, preactivation: Tensor) -> tuple[list[Tensor], Tensor]:
        """`forward` from the first layer's preactivations (n, k) on."""
        entering = [preactivation]
        for layer in range(len(self.later)):
            entering.append(self._layer(layer, self.act.apply(entering[-1])))
        return entering[:-1], entering[-1]

    def _layer(self, layer: int, active: Tensor) -> Tensor:
        if not self.later_biases:
            return active @ self.later[layer].T
        return torch.addmm(self.later_biases[layer], active, self.later[layer].T)

    def to(self, like: torch.dtype | torch.device) -> Matrices:
        return replace(
            self,
            first=self.first.to(like),
            bias=self.bias.to(like),
            later=tuple(matrix.to(like) for matrix in self.later),
            later_biases=tuple(bias.to(like) for bias in self.later_biases),
        )


@runtime_checkable
class DenseNetwork(Architecture, Protocol):
    """A fully connected network as a value."""

    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> int: ...
    def matrices(self, parameters: Tensor) -> Matrices:
        """(p,) to the layers, as views."""
        ...

    def join(self, matrices: Matrices) -> Tensor:
        """The inverse of `matrices`: (p,)."""
        ...
