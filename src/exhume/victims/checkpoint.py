"""A user's own checkpoint: tensors from a file that is never executed, read as a fully connected network.

What the network is follows from the tensors' names and shapes: two-dimensional ones are the layers, one after
the other, and a one-dimensional one of the same name is a layer's bias. What was inferred is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from exhume.contract import ExhumeError, NotApplicable, Records, Secret, Weights
from exhume.models.activations import activation as known_activation
from exhume.models.homogeneous import HomogeneousMLP
from exhume.models.matrices import Matrices
from exhume.victims.against_base import Against, check_finite, read_against
from exhume.victims.tensor_file import read_tensors

__all__ = ["Checkpoint", "read_checkpoint", "secret_of"]

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The release a checkpoint is, and how it was read."""

    release: Weights  # one model
    architecture: HomogeneousMLP
    inferred: tuple[str, ...]  # sentences


def secret_of(records: Records) -> Secret:
    """What the owner says the network was trained on: for scoring only."""
    return Secret(records)


def read_checkpoint(
    path: Path,
    *,
    activation: str,
    shape: tuple[int, ...],
    trust: bool = False,
    against: Against | None = None,
) -> Checkpoint:
    """The network in a safetensors file or a saved state dict; with `trust`, in a file that runs code.

    against: the base of an adapter or a difference.
    Raises `NotApplicable` with the layer for what the margin attack does not cover.
    """
    if against is None:
        named, notes = read_tensors(path, trust=trust)
    else:
        states = read_against(path, against, trust=trust)
        named, notes, path = states.after, list(states.notes), against.base
    check_finite(named, "checkpoint")
    _check_kinds(named)
    layers, order = _in_order(named, math.prod(shape), sorted_names=path.suffix == ".safetensors")
    _check_activation(activation, layers[0])
    if len(layers) == 1:
        raise NotApplicable(
            f"{layers[0]}: without a hidden layer the weights are one sum over all records, which no "
            "gate tells apart",
            ever=False,
        )
    bias, about_bias = _biases(named, layers)
    matrices = [_floating(named[name]) for name in layers]
    widths = tuple(len(matrix) for matrix in matrices)
    mlp = HomogeneousMLP(shape, widths[:-1], widths[-1])
    flat = mlp.join(Matrices(matrices[0], bias.to(matrices[0]), tuple(matrices[1:])))
    inferred = (
        *notes,
        f"Layers: {', '.join(layers)}, {order}; {mlp}.",
        *about_bias,
        *_about_type(named[layers[0]]),
    )
    return Checkpoint(Weights(flat[None], mlp.layout), mlp, inferred)


def _check_kinds(named: Mapping[str, Tensor]) -> None:
    """Refuse, with the tensor's name, every layer that is not a fully connected one."""
    for name in named:
        layer, _, last = name.rpartition(".")
        if last in _STATISTICS:
            raise NotApplicable(
                f"{layer}: batch norm makes a record's gradient depend on its batch; not yet covered",
                ever=True,
            )
    for name, tensor in named.items():
        if tensor.ndim > 2:
            raise NotApplicable(
                f"{name}: a convolution (shape {tuple(tensor.shape)}) has no row span of whole "
                "images; not yet covered",
                ever=True,
            )
        if not tensor.is_floating_point():
            raise NotApplicable(
                f"{name}: {str(tensor.dtype).removeprefix('torch.')} values; quantised weights are "
                "not yet covered",
                ever=True,
            )
        if tensor.ndim == 1 and not _bias_of(name, named):
            raise NotApplicable(
                f"{name}: a vector that is no layer's bias (a normalisation?); not yet covered",
                ever=True,
            )


def _bias_of(name: str, named: Mapping[str, Tensor]) -> str | None:
    """The weight whose bias this is."""
    layer, _, last = name.rpartition(".")
    weight = f"{layer}.weight" if layer else "weight"
    fits = last == "bias" and weight in named and named[weight].ndim == 2
    return weight if fits and len(named[weight]) == len(named[name]) else None


def _in_order(
    named: Mapping[str, Tensor], inputs: int, *, sorted_names: bool
) -> tuple[list[str], str]:
    """The layers from input to output, and how that order was found."""
    layers = [name for name, tensor in named.items() if tensor.ndim == 2]
    if not layers:
        raise ExhumeError(
            f"checkpoint: no two-dimensional tensor among {', '.join(named) or 'none'}; "
            "nothing in it is a fully connected layer"
        )
    natural = sorted(layers, key=_natural)
    stored = natural if sorted_names else layers  # safetensors files do not keep an order
    for order, how in ((stored, "in the order of the file"), (natural, "in the order of names")):
        if _chains(order, named, inputs):
            return order, "in the order of names" if sorted_names else how
    chains = _all_chains(layers, named, inputs)
    if len(chains) == 1:
        return chains[0], "in the only order in which their shapes fit"
    if len(chains) > 1:
        raise ExhumeError(
            f"checkpoint: {', '.join(layers)} fit together in more than one order; number the layers' "
            "names from input to output"
        )
    raise _no_chain(stored, named, inputs)


def _no_chain(order: list[str], named: Mapping[str, Tensor], inputs: int) -> ExhumeError:
    taken = [named[name].shape[1] for name in order]
    if inputs not in taken:
        return ExhumeError(
            f"shape: records of {inputs} numbers given, but {order[0]} takes {taken[0]}; "
            "give the shape of one record, such as 3,32,32"
        )
    for before, after in pairwise(order):
        if len(named[before]) != named[after].shape[1]:
            return NotApplicable(
                f"{after}: takes {named[after].shape[1]} inputs where {before} gives "
                f"{len(named[before])}; only chains of fully connected layers are covered",
                ever=True,
            )
    return NotApplicable(
        f"{order[0]}: the layers form no single chain from {inputs} inputs", ever=True
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """fc2 before fc10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _chains(order: list[str], named: Mapping[str, Tensor], inputs: int) -> bool:
    fits = all(len(named[a]) == named[b].shape[1] for a, b in pairwise(order))
    return named[order[0]].shape[1] == inputs and fits


def _all_chains(layers: list[str], named: Mapping[str, Tensor], inputs: int) -> list[list[str]]:
    """Orders of all layers in which each takes what the one before gives; no more than two."""
    if not layers:
        return [[]]
    found: list[list[str]] = []
    for name in layers:
        if named[name].shape[1] == inputs and len(found) < 2:
            others = [other for other in layers if other != name]
            found += [[name, *rest] for rest in _all_chains(others, named, len(named[name]))]
    return found[:2]


def _check_activation(name: str, layer: str) -> None:
    known_activation(name)
    if name == "relu":
        return
    where = f"{layer.removesuffix('.weight')}: "
    if name == "leaky-relu":
        raise NotApplicable(f"{where}leaky ReLU is homogeneous, but not yet covered", ever=True)
    raise NotApplicable(
        f"{where}the attack needs ReLU's gates; with {name} after a layer no margin is maximised, or "
        "nothing tells the records of its sum apart",
        ever=False,
    )


def _biases(named: Mapping[str, Tensor], layers: list[str]) -> tuple[Tensor, list[str]]:
    """The first layer's bias, zero where there is none; any other must be zero."""
    biases = {_bias_of(name, named): name for name in named if named[name].ndim == 1}
    notes = []
    for weight in layers[1:]:
        if weight in biases:
            name = biases[weight]
            if bool(named[name].any()):
                raise NotApplicable(
                    f"{name}: a bias after the first layer breaks homogeneity; not yet covered",
                    ever=True,
                )
            notes.append(f"{name} is zero everywhere and counts as absent.")
    first = named[layers[0]]
    if layers[0] in biases:
        return _floating(named[biases[layers[0]]]), notes
    return torch.zeros(len(first)), [*notes, f"{layers[0]} has no bias."]


def _floating(tensor: Tensor) -> Tensor:
    """The tensor in at least 32 bits."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _about_type(tensor: Tensor) -> list[str]:
    if tensor.dtype in (torch.float32, torch.float64):
        return []
    return [f"The weights are {str(tensor.dtype).removeprefix('torch.')}, read as float32."]
