"""The fully connected layers at the end of a network, and the gates between them, whoever wrote it.

Found by running it on probes: which `nn.Linear` takes what another one gave, through an activation that keeps
what is positive and multiplies the rest by one number. A batch norm in eval mode between layer and gate is
part of the layer: it scales and shifts each neuron.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import Architecture, Key
from exhume.models.probes import after, before, inputs_of

_PROBES = 8
_SAME = 1e-5  # relative


@dataclass(frozen=True)
class Layer:
    name: str
    biased: bool
    leak: float = 0.0  # of the gate behind it
    norm: str = ""  # the batch norm in eval mode that takes what it gives; "": none


@dataclass(frozen=True)
class Chain:
    """Layers in a row with gates between them, lowest first; the last has none behind it."""

    layers: tuple[Layer, ...]
    whole: bool  # what enters the lowest one is the record itself

    @property
    def gated(self) -> bool:
        return len(self.layers) > 1


def chain_of(
    architecture: Architecture,
    parameters: Tensor,
    frozen: Collection[str] = (),
    *,
    lowest_alone: bool = False,
) -> Chain | None:
    """The longest chain that ends with the last fully connected layer; None: there is no such layer.

    frozen: parameters without a gradient; a layer with such weights is passed over. lowest_alone: in its
    place the first such layer that takes one vector a record, whatever comes behind it.
    """
    generator = Key.from_seed(0).fold("chain").generator()
    shape = (_PROBES, *architecture.input_shape)
    probes = (4 * torch.rand(shape, generator=generator) - 2).to(parameters.dtype)
    known = set(architecture.layout.names) - set(frozen)
    used = _seen(architecture, parameters, probes)
    norms = [call for call in used if call.norm]
    seen = [
        call
        for call in used
        if not call.norm and f"{call.name}.weight" in known and call.inputs.ndim == 2
    ]
    if not seen:
        return None
    lowest = seen[0] if lowest_alone else seen[-1]
    layers = [_layer(lowest, norms, known)[0]]
    for lower in [] if lowest_alone else reversed(seen[:-1]):
        layer, outputs = _layer(lower, norms, known)
        leak = _leak(outputs, lowest.inputs)
        if leak is None:
            break
        layers.insert(0, replace(layer, leak=leak))
        lowest = lower
    flat = probes.flatten(1)
    whole = lowest.inputs.shape == flat.shape and bool(torch.equal(lowest.inputs, flat))
    return Chain(tuple(layers), whole)


def _layer(call: _Seen, norms: Sequence[_Seen], known: set[str]) -> tuple[Layer, Tensor]:
    """The layer with the norm behind it, if the gradient of either's shift is there; and what it gives."""
    biased = f"{call.name}.bias" in known
    for norm in norms:
        shifted = biased or f"{norm.name}.bias" in known
        if shifted and torch.equal(norm.inputs, call.outputs):
            return Layer(call.name, True, norm=norm.name), norm.outputs
    return Layer(call.name, biased), call.outputs


def features_of(module: nn.Module, named: dict[str, Tensor], layer: str, records: Tensor) -> Tensor:
    """(n, f) what enters a layer; a gradient flows back to the records."""
    with inputs_of(module, layer) as entered:
        functional_call(module, named, (records,))
    return entered[-1]


def convolution_below(architecture: Architecture, parameters: Tensor, layer: str) -> str | None:
    """The trained weight of the last convolution that runs before a layer does."""
    module, order = architecture.build(), list[str]()
    some = [n for n, part in module.named_modules() if isinstance(part, nn.Conv2d) or n == layer]
    probe = parameters.new_zeros(2, *architecture.input_shape)
    with before(module, some, lambda name, _: order.append(name)):
        functional_call(module, architecture.layout.split(parameters), (probe,))
    weights = [f"{name}.weight" for name in order[: order.index(layer)]]
    known = [name for name in weights if name in architecture.layout.names]
    return known[-1] if known else None


@dataclass(frozen=True, eq=False)
class _Seen:
    name: str
    inputs: Tensor
    outputs: Tensor
    norm: bool = False


def _seen(architecture: Architecture, parameters: Tensor, probes: Tensor) -> list[_Seen]:
    """Every `nn.Linear` and settled norm, in the order of use; one that is used twice is none of ours."""
    module, calls = architecture.build(), list[_Seen]()
    norms = {  # they scale and shift by numbers that no batch changes
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.BatchNorm1d) and not layer.training and layer.track_running_stats
    }
    linear = {n for n, layer in module.named_modules() if isinstance(layer, nn.Linear)}

    def see(name: str, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        calls.append(_Seen(name, inputs[0].detach(), outputs.detach(), name in norms))

    with after(module, norms | linear, see):
        functional_call(module, architecture.layout.split(parameters), (probes,))
    names = [call.name for call in calls]
    return [call for call in calls if names.count(call.name) == 1]


def _leak(before: Tensor, after: Tensor) -> float | None:
    """The slope below zero, if what is behind the gate is what a gate makes of what is before it."""
    if before.shape != after.shape:
        return None
    shut = before < 0
    if not bool(shut.any()):
        return None
    leak = float((after[shut] / before[shut]).median())
    made = torch.where(shut, leak * before, before)
    if float((made - after).norm()) > _SAME * float(before.norm()):
        return None
    return leak if 0 <= leak < 1 else None
