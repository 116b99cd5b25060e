"""A user's own checkpoint: tensors from a file that is never executed, read as a fully connected network.

What the network is follows from the tensors' names and shapes: two-dimensional ones are the layers, one after
the other, and a one-dimensional one of the same name is a layer's bias. The activation leaves no trace in a
file, so the owner says it. What was inferred is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, NotApplicable, Weights
from exhume.models.activations import activation as known_activation
from exhume.models.matrices import DenseNetwork, Matrices
from exhume.models.mlp import MLP, HomogeneousMLP
from exhume.models.own import Convolved, ModuleArchitecture, model_named, not_per_record
from exhume.readers.adapters import BaseReference, check_finite, read_against
from exhume.readers.images import natural
from exhume.readers.tensors import check_names, read_tensors

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_SPELT = {
    "leakyrelu": "leaky-relu",
    "swish": "silu",
    "none": "identity",
    "linear": "identity",
    "logistic": "sigmoid",
}
TRAINING = "audit the way it is trained instead, as [victim] with `exhume audit`"
_HEAD = (
    "of a head behind a frozen backbone give its name with --part, and what enters it as vectors with "
    "--trained-on"
)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The release a checkpoint is, and how it was read."""

    release: Weights  # one model
    architecture: DenseNetwork | Convolved
    inferred: tuple[str, ...]  # sentences


def read_checkpoint(
    source: Path | Mapping[str, Tensor],
    *,
    activation: str,
    shape: tuple[int, ...],
    part: str = "",
    trust: bool = False,
    against: BaseReference | None = None,
    model: str = "",
) -> Checkpoint:
    """The network in a safetensors file or a saved state dict; with `trust`, in a file that runs code.

    source: the file, or a state dict in memory, whose order is that of the layers.

    part: only tensors whose names begin with it, such as the head of a larger network. against: the base of
    an adapter or a difference. model: the network by name, where there are convolutions.
    Raises `NotApplicable` with the layer, and with what to use instead, for what the attack does not cover.
    """
    notes: list[str] = []
    sorted_names = False
    if not isinstance(source, Path):
        named = dict(source)
    elif against is None:
        named, notes = read_tensors(source, trust=trust)
        sorted_names = source.suffix == ".safetensors"
    else:
        states = read_against(source, against, trust=trust)
        named, notes = states.after, list(states.notes)
        sorted_names = against.base.suffix == ".safetensors"
    if part:
        named = _part_of(named, part)
    check_finite(named, "checkpoint")
    if not (model and convolution_in(named)):
        _check_norms(named)
    if first := convolution_in(named):
        if not model:
            raise NotApplicable(
                f"{first}: a convolution (shape {tuple(named[first].shape)}), whose stride and padding are "
                f"not in the file; name your nn.Module with --model net.py:make, or {TRAINING}; {_HEAD}",
                ever=True,
            )
        release, convolved = _read_convolved(named, model, shape)
        how = f"The network is {_short(model)}."
        return Checkpoint(release, convolved, (*notes, how))
    _check_kinds(named)
    layers, order = _in_order(named, math.prod(shape), sorted_names=sorted_names)
    function = activation_named(activation)
    _check_gates(function, layers)
    biases, about_biases = _biases(named, layers)
    network, matrices = _network(named, layers, biases, function, shape)
    inferred = (
        *notes,
        f"Layers: {', '.join(layers)}, {order}; {network}.",
        *about_biases,
    )
    kind = named[layers[0]].dtype
    if kind not in (torch.float32, torch.float64):
        about = f"The weights are {str(kind).removeprefix('torch.')}, read as float32."
        inferred = (*inferred, about)
    flat = network.join(matrices)
    return Checkpoint(Weights(flat[None], network.layout), network, inferred)


def activation_named(text: str) -> str:
    """The activation's name here, however it is written: ReLU, nn.GELU(), leaky_relu."""
    bare = text.strip().removesuffix("()").rpartition(".")[2].lower()
    spelt = bare.replace("_", "-")
    return known_activation(_SPELT.get(spelt.replace("-", ""), spelt)).name


def _network(
    named: Mapping[str, Tensor],
    layers: list[str],
    biases: list[Tensor | None],
    function: str,
    shape: tuple[int, ...],
) -> tuple[DenseNetwork, Matrices]:
    """Homogeneous where it is, which more attacks read; else with a bias everywhere, zero if not there."""
    weights = [_floating(named[name]) for name in layers]
    full = [
        torch.zeros(len(weight)).to(weight) if bias is None else _floating(bias).to(weight)
        for weight, bias in zip(weights, biases, strict=True)
    ]
    widths = tuple(len(weight) for weight in weights)
    first, later, kind = weights[0], tuple(weights[1:]), known_activation(function)
    if function == "relu" and all(bias is None for bias in biases[1:]):
        plain = HomogeneousMLP(shape, widths[:-1], widths[-1])
        return plain, Matrices(first, full[0], later)
    mlp = MLP(shape, widths[:-1], widths[-1], function, init="torch")
    return mlp, Matrices(first, full[0], later, tuple(full[1:]), kind)


def _part_of(named: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors below a name, called without it."""
    prefix = f"{part.rstrip('.')}."
    found = {name.removeprefix(prefix): t for name, t in named.items() if name.startswith(prefix)}
    if not found:
        there = dict.fromkeys(name.partition(".")[0] for name in named)
        raise ExhumeError(
            f"part: no tensor's name begins with {prefix!r}; names begin with {', '.join(there)[:300]}"
        )
    return found


def _check_norms(named: Mapping[str, Tensor]) -> None:
    """Refuse, with the layer's name, statistics over batches."""
    for name in named:
        layer, _, last = name.rpartition(".")
        if last in _STATISTICS:
            raise NotApplicable(
                f"{layer or name}: a batch norm leaves the length of the weights before it free, so that "
                f"weight decay never brings them to the point the attack needs; {TRAINING}; {_HEAD}",
                ever=True,
            )


def _check_kinds(named: Mapping[str, Tensor]) -> None:
    """Refuse, with the tensor's name, every layer that is not a fully connected one."""
    for name, tensor in named.items():
        if not tensor.is_floating_point():
            raise NotApplicable(
                f"{name}: {str(tensor.dtype).removeprefix('torch.')} values; give the weights as they were "
                "before they were quantised",
                ever=True,
            )
        if tensor.ndim == 1 and not _bias_of(name, named):
            raise NotApplicable(
                f"{name}: a vector that is no layer's bias (a normalisation, a PReLU?); {TRAINING}; {_HEAD}",
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
    by_name = sorted(layers, key=natural)
    stored = by_name if sorted_names else layers  # safetensors files do not keep an order
    for order, how in ((stored, "in the order of the file"), (by_name, "in the order of names")):
        fits = all(len(named[a]) == named[b].shape[1] for a, b in pairwise(order))
        if fits and named[order[0]].shape[1] == inputs:
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
                f"{len(named[before])}; only chains of fully connected layers are covered; {TRAINING}; "
                f"{_HEAD}",
                ever=True,
            )
    return NotApplicable(
        f"{order[0]}: the layers form no single chain from {inputs} inputs; {TRAINING}; {_HEAD}",
        ever=True,
    )


def _all_chains(layers: list[str], named: Mapping[str, Tensor], inputs: int) -> list[list[str]]:
    """Orders of all layers in which each takes what the one before gives; no more than two."""
    if not layers:
        return [[]]
    chains: list[list[str]] = []
    for name in layers:
        if named[name].shape[1] == inputs and len(chains) < 2:
            others = [other for other in layers if other != name]
            chains += [[name, *rest] for rest in _all_chains(others, named, len(named[name]))]
    return chains[:2]


def _check_gates(function: str, layers: list[str]) -> None:
    """Something must tell the records of a layer's sum apart."""
    if len(layers) == 1 or function == "identity":
        why = "without a hidden layer" if len(layers) == 1 else "with no activation after it"
        raise NotApplicable(
            f"{layers[0]}: {why} the weights are one sum over all records, which nothing tells apart; of a "
            "linear model audit the fit instead, [fitted] or [victim], against someone who knows the others",
            ever=False,
        )


def _biases(
    named: Mapping[str, Tensor], layers: list[str]
) -> tuple[list[Tensor | None], list[str]]:
    """Each layer's bias; after the first layer, one that is zero everywhere counts as absent."""
    names = {_bias_of(name, named): name for name in named if named[name].ndim == 1}
    biases: list[Tensor | None] = []
    notes = []
    for place, weight in enumerate(layers):
        bias = named[names[weight]] if weight in names else None
        if bias is None:
            notes += [f"{weight} has no bias."] if place == 0 else []
        elif place and not bool(bias.any()):
            notes.append(f"{names[weight]} is zero everywhere and counts as absent.")
            bias = None
        biases.append(bias)
    return biases, notes


def _floating(tensor: Tensor) -> Tensor:
    """The tensor in at least 32 bits."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


# With convolutions
#
# Their strides, padding and pools are not in a file of tensors, so the network comes by name.


_TEMPLATE = Key.from_seed(0).fold("checkpoint")


def convolution_in(named: Mapping[str, Tensor]) -> str | None:
    """The name of the first weight that is no matrix."""
    return next((name for name, tensor in named.items() if tensor.ndim > 2), None)


def _read_convolved(
    named: Mapping[str, Tensor], model: str, shape: tuple[int, ...]
) -> tuple[Weights, Convolved]:
    """The release, and the network of that name."""
    made = model_named(model, _TEMPLATE)
    if not isinstance(made, nn.Module) and tuple(made.input_shape) != shape:
        raise ExhumeError(
            f"model: {model} takes records of shape {made.input_shape}, these have {shape}"
        )
    module = made if isinstance(made, nn.Module) else made.build()
    check_names(named, module, "the file", argument="checkpoint")
    loaded = _loaded(module, named)
    plain = ModuleArchitecture.of(loaded, shape)  # one forward pass is tried
    if why := not_per_record(module, shape):
        raise NotApplicable(
            f"{why}, so that no layer is a sum over the records as the released network sees them; "
            f"{TRAINING}; {_HEAD}",
            ever=True,
        )
    with torch.no_grad():
        outputs = plain.module(plain.initial(_TEMPLATE).new_zeros(1, *shape)).shape[1]

    def start(key: Key) -> Tensor:
        if not isinstance(made, nn.Module):
            return made.initial(key)
        fresh = model_named(model, key)
        assert isinstance(fresh, nn.Module)  # the first one was
        return plain.layout.join({n: p.detach() for n, p in fresh.named_parameters()})

    own = f"{_short(model)} with {plain.layout.size:,} parameters"
    name = own if isinstance(made, nn.Module) else str(made)
    network = Convolved(plain.module, shape, outputs, name, start)
    return Weights(plain.initial(_TEMPLATE)[None], plain.layout), network


def _short(model: str) -> str:
    """Its name without the folder."""
    where, _, name = model.rpartition(":")
    return f"{Path(where).name}:{name}"


def _loaded(module: nn.Module, named: Mapping[str, Tensor]) -> nn.Module:
    """The module with the file's parameters, and its buffers where it has them."""
    wanted = {n: t.to(torch.float32) if t.is_floating_point() else t for n, t in named.items()}
    module.load_state_dict(wanted, strict=False)
    return module
