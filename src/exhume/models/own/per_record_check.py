"""Whether a module, while it trains, is a function of its parameters and one record at a time.

Models that are trained side by side follow the gradient of such a function. Dropout, statistics over the
batch and running statistics are something else.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from exhume.core.contract import Key
from exhume.naming import seeded_globals

__all__ = ["draws_numbers", "keeps_statistics", "not_per_record"]

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_NORM = nn.modules.batchnorm._NormBase
_DROPOUT = nn.modules.dropout._DropoutNd
_SAME = 1e-4  # relative: fp32 outputs of the same function


def keeps_statistics(layer: nn.Module) -> bool:
    """Whether training changes this layer's buffers."""
    return isinstance(layer, _NORM) and layer.training and layer.running_mean is not None


def not_per_record(module: nn.Module, input_shape: tuple[int, ...]) -> str:
    """What it does besides, in words that begin with the layer's name; empty if nothing is seen."""
    for name, layer in module.named_modules():
        kind = f"{name or 'the model'} ({type(layer).__name__})"
        if layer.training and isinstance(layer, _BATCH_NORM):
            return f"{kind} takes statistics over the batch"
        if keeps_statistics(layer):
            return f"{kind} keeps running statistics"
        if layer.training and isinstance(layer, _DROPOUT) and layer.p:
            return f"{kind} drops inputs at random"
    probes = torch.rand(3, *input_shape, generator=Key.from_seed(0).fold("steady").generator())
    if draws_numbers(module, probes):
        return "its forward draws random numbers while it trains"
    if not _same(_outputs(module, probes, 0)[:1], _outputs(module, probes[:1], 0)):
        return "its forward mixes the records of a batch"
    return ""


def draws_numbers(module: nn.Module, probes: Tensor) -> bool:
    """Whether its outputs for (n, *shape) differ from call to call in its present modes, as with dropout."""
    first, second = (_outputs(module, probes, seed) for seed in (0, 1))
    return not _same(first, second)


def _outputs(module: nn.Module, inputs: Tensor, seed: int) -> Tensor:
    with seeded_globals(Key.from_seed(seed)), torch.no_grad():
        found: Tensor = copy.deepcopy(module)(inputs)
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _SAME * float(one.norm())
