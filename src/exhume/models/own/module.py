"""Somebody else's `nn.Module` as an architecture, and the fully connected network it may turn out to be."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_

from exhume.core.contract import Architecture, ExhumeError, Key, Layout
from exhume.models.activations import ACTIVATIONS
from exhume.models.mlp import MLP
from exhume.models.two_layer import TwoLayer

__all__ = ["ModuleArchitecture", "recognised"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_PROBES = 8
_SAME = 1e-4  # relative: fp32 outputs of the same function


@dataclass(frozen=True, eq=False)
class ModuleArchitecture:
    """A module as it is: its parameters are the start, its buffers are kept."""

    module: nn.Module
    input_shape: tuple[int, ...]

    @staticmethod
    def of(
        module: nn.Module, input_shape: tuple[int, ...], batch_norm: str = "eval"
    ) -> ModuleArchitecture:
        """A copy without dropout; batch norm in train mode uses its batch and remembers nothing."""
        own = copy.deepcopy(module).eval()
        if batch_norm == "train":
            for layer in own.modules():
                if isinstance(layer, _NORMS):
                    layer.train()
            replace_all_batch_norm_modules_(own)
        made = ModuleArchitecture(own, input_shape)
        made.check()
        return made

    @property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    def initial(self, key: Key) -> Tensor:
        """(p,) the module's present parameters, whatever the key."""
        return self.layout.join({n: p.detach() for n, p in self.module.named_parameters()})

    def build(self) -> nn.Module:
        return copy.deepcopy(self.module)

    def check(self) -> None:
        """One forward pass: an output row a record, or a sentence that says what went wrong."""
        probe = self.initial(Key.from_seed(0)).new_zeros(2, *self.input_shape)
        try:
            outputs = self.module(probe)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExhumeError(
                f"model: it does not take records of shape {self.input_shape}: {first}"
            ) from error
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 2:
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ExhumeError(
                f"model: for 2 records it must return (2, classes) numbers, it returns {found}"
            )

    def __str__(self) -> str:
        return f"{type(self.module).__name__} with {self.layout.size:,} parameters"


def recognised(architecture: Architecture) -> Architecture:
    """The `MLP` or `TwoLayer` that computes the same function of the same flat parameters; else itself."""
    if not isinstance(architecture, ModuleArchitecture):
        return architecture
    for candidate in _candidates(architecture):
        if _same_function(architecture, candidate):
            return candidate
    return architecture


def _candidates(architecture: ModuleArchitecture) -> list[MLP | TwoLayer]:
    """Networks whose parameters have the same shapes in the same order."""
    shapes, shape = architecture.layout.shapes, architecture.input_shape
    found: list[MLP | TwoLayer] = []
    weights = [s for s in shapes if len(s) == 2]
    if not weights:
        return []
    outputs = weights[-1][0]
    for name in ACTIVATIONS:
        hidden = tuple(s[0] for s in weights[:-1])
        found.append(MLP(shape, hidden, outputs, name))
        if len(weights) == 2:
            found.append(TwoLayer(shape, weights[0][0], outputs, name))
    return [candidate for candidate in found if candidate.layout.shapes == shapes]


def _same_function(ours: ModuleArchitecture, other: MLP | TwoLayer) -> bool:
    generator = Key.from_seed(0).fold("recognise").generator()
    probes = 4 * torch.rand(_PROBES, *ours.input_shape, generator=generator) - 2
    drawn = other.initial(Key.from_seed(0).fold("recognise"))
    for flat in (ours.initial(Key.from_seed(0)), drawn):
        records = probes.to(flat.dtype)
        want = functional_call(ours.module, ours.layout.split(flat), (records,))
        got = functional_call(other.build(), other.layout.split(flat), (records,))
        if want.shape != got.shape or float((want - got).norm()) > _SAME * float(want.norm()):
            return False
    return True
