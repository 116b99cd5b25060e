"""Files of weights that are read against a base state: a LoRA adapter, a difference, a part of the weights.

Each releases the whole network to everybody who has the base model, which is usually public:

    LoRA        W = W_0 + s B A        A (r, in), B (out, r), s = alpha / r
    difference  W = W_0 + D
    part        W = what the file has, else W_0

PEFT's names are understood, and `adapter_config.json` beside an adapter is read as data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import Architecture, ExhumeError, NotApplicable
from exhume.core.files import object_at
from exhume.readers.tensors import bare_name, read_tensors

Kind = Literal["adapter", "delta", "part"]
_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_TURNED = "Conv1D"  # of transformers, whose weight is (in, out)


@dataclass(frozen=True)
class BaseReference:
    """What a file is read against, and what it is said to hold."""

    base: Path
    kind: Kind | None = None  # None: an adapter if it has one, else a part of the weights
    scaling: float | None = None  # of an adapter; None: as the configuration beside it says


@dataclass(frozen=True, eq=False)
class Adapter:
    """What fine-tuning has trained instead of whole weights."""

    first: Mapping[str, Tensor]  # A (r, in), by layer
    second: Mapping[str, Tensor]  # B (out, r), by layer
    saved: Mapping[str, Tensor]  # trained whole, by name
    scaling: float
    turned: Collection[str] = ()  # layers whose weights are (in, out): `Conv1D` of transformers


@dataclass(frozen=True, eq=False)
class States:
    """The network before and after, by bare names, and how the files were read."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    notes: tuple[str, ...]
    adapter: Adapter | None = None


def read_against(path: Path, against: BaseReference, *, trust: bool = False) -> States:
    """trust: see `read_tensors`."""
    kind = against.kind
    what = kind if kind in ("adapter", "delta") else "checkpoint"
    given, notes = read_tensors(path, what, trust=trust)
    named = _by_bare_name(given, what)
    base = _by_bare_name(read_tensors(against.base, "base", trust=trust)[0], "base")
    check_finite(base, "base")
    lora = any(".lora_" in name for name in named)
    if kind is not None and lora != (kind == "adapter"):
        holds = "a LoRA adapter" if lora else "no lora_A and lora_B"
        raise ExhumeError(f"{what}: {path} holds {holds}")
    check_finite(named, what)
    if lora:
        adapter = _adapter(named, base, path, against.scaling, what)
        said = f"A LoRA adapter of {', '.join(adapter.first)}, scaled by {adapter.scaling:g}."
        return States(base, _with_adapter(adapter, base), (*notes, said), adapter)
    if kind == "delta":
        _check_known(named, base, what)
        whole = base | {n: base[n] + t.to(base[n].dtype) for n, t in named.items()}
        said = f"{len(named)} tensors are differences to the base."
        return States(base, whole, (*notes, said))
    said = f"{len(named)} of {len(base | named)} tensors are the file's own."
    return States(base, base | named, (*notes, said))


def _by_bare_name(named: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    by_name: dict[str, Tensor] = {}
    for name, tensor in named.items():
        short = bare_name(name).replace(".modules_to_save", "").replace(".base_layer", "")
        short = short.replace(".default", "") if ".lora_" in short else short
        if short in by_name:
            raise ExhumeError(f"{what}: two tensors are called {short} once prefixes are gone")
        by_name[short] = tensor
    return by_name


def check_finite(named: Mapping[str, Tensor], what: str) -> None:
    for name, tensor in named.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise ExhumeError(f"{what}: {name} holds NaN or infinite values")


def _check_known(named: Mapping[str, Tensor], start: Mapping[str, Tensor], what: str) -> None:
    for name, tensor in named.items():
        if name not in start:
            raise ExhumeError(f"{what}: the base has no {name}")
        if start[name].shape != tensor.shape:
            raise ExhumeError(
                f"{what}: {name} has shape {tuple(tensor.shape)}, that of the base "
                f"{tuple(start[name].shape)}"
            )


# LoRA


def _adapter(
    named: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    path: Path,
    scaling: float | None,
    what: str,
) -> Adapter:
    first: dict[str, Tensor] = {}
    second: dict[str, Tensor] = {}
    saved: dict[str, Tensor] = {}
    for name, tensor in named.items():
        if name.endswith(_FIRST):
            first[name.removesuffix(_FIRST)] = tensor
        elif name.endswith(_SECOND):
            second[name.removesuffix(_SECOND)] = tensor
        elif ".lora_" in name:
            raise NotApplicable(f"{name}: only lora_A and lora_B are read so far", ever=True)
        else:
            saved[name] = tensor
    config = path.with_name("adapter_config.json")
    said = object_at(config) if config.exists() else {}
    turned = {
        layer
        for layer in [*first, *second]
        if _turned(layer, first, second, start, what, said=bool(said.get("fan_in_fan_out")))
    }
    _check_known({n: t for n, t in saved.items() if n in start}, start, what)  # or a new head
    if scaling is None:
        scaling = _scaling(path, first, what)
    return Adapter(first, second, saved, scaling, turned)


def _turned(
    layer: str,
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    what: str,
    *,
    said: bool,
) -> bool:
    """Whether the layer's weight is (in, out): by its shape, or as is said where it is square.

    Raises `ExhumeError` where the adapter does not fit.
    """
    weight = f"{layer}.weight"
    if layer not in first or layer not in second or weight not in start:
        there = f"{layer}{_FIRST if layer in first else _SECOND}"
        lost = f"{weight} in the base" if layer in first and layer in second else ""
        lost = lost or f"{layer}{_SECOND if layer in first else _FIRST}"
        raise ExhumeError(f"{what}: {there} is there, but there is no {lost}")
    a, b = first[layer], second[layer]
    fits, added = a.ndim == b.ndim == 2 and len(a) == b.shape[1], (len(b), a.shape[-1])
    if not fits or tuple(start[weight].shape) not in (added, added[::-1]):
        raise ExhumeError(
            f"{what}: {layer} adds {tuple(b.shape)} times {tuple(a.shape)} to a weight "
            f"of {tuple(start[weight].shape)}"
        )
    if not (a.is_floating_point() and b.is_floating_point()):
        raise ExhumeError(f"{what}: {layer} holds {a.dtype} and {b.dtype}, not floating-point")
    return said if added[0] == added[1] else tuple(start[weight].shape) != added


def _with_adapter(adapter: Adapter, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    whole = dict(start) | dict(adapter.saved)
    for layer, first in adapter.first.items():
        change = adapter.scaling * (adapter.second[layer].float() @ first.float())
        change = change.T if layer in adapter.turned else change
        whole[f"{layer}.weight"] = start[f"{layer}.weight"].float() + change
    return whole


def _scaling(path: Path, first: Mapping[str, Tensor], what: str) -> float:
    """alpha / r of the configuration beside the adapter; alpha / sqrt(r) where it says so."""
    config = path.with_name("adapter_config.json")
    content = object_at(config, "scaling: adapter_config.json, or the number itself, is needed")
    alpha = content.get("lora_alpha")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ExhumeError(f"{config}: lora_alpha is {alpha!r}, a finite number is needed")
    for option in ("alpha_pattern", "rank_pattern", "use_dora"):
        if content.get(option):
            raise NotApplicable(f"{config}: {option} is not read so far; merge it first", ever=True)
    ranks = {len(tensor) for tensor in first.values()}
    if len(ranks) != 1:
        raise ExhumeError(f"{what}: adapters of ranks {sorted(ranks)}, one is needed")
    rank = ranks.pop()
    if content.get("r", rank) != rank:
        raise ExhumeError(f"{what}: rank {rank}, but {config} says r = {content['r']}")
    return alpha / (math.sqrt(rank) if content.get("use_rslora") else rank)


# As the weights of a known architecture


def weights_in(path: Path, architecture: Architecture) -> Tensor:
    """(p,) float32, of a file that holds the whole state of such a network and nothing else."""
    named = _by_bare_name(read_tensors(path)[0], "checkpoint")
    if any(".lora_" in name for name in named):
        raise ExhumeError("base: a LoRA adapter needs the state that it is added to")
    _check_constants(named, architecture)
    layout = architecture.layout
    lost = [name for name in layout.names if bare_name(name) not in named]
    if lost:
        raise ExhumeError(
            f"checkpoint: it lacks {', '.join(lost[:3])} of {len(layout.names)} tensors"
        )
    check_finite(named, "checkpoint")
    parameters = {name: named[bare_name(name)].float() for name in layout.names}
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if tuple(parameters[name].shape) != shape:
            raise ExhumeError(
                f"checkpoint: {name} has shape {tuple(parameters[name].shape)}, {shape} is needed"
            )
    return layout.join(parameters)


def _check_constants(named: Mapping[str, Tensor], architecture: Architecture) -> None:
    """What is not trained must be what the architecture builds, and nothing may be left over."""
    trained = {bare_name(name) for name in architecture.layout.names}
    built = {bare_name(n): t for n, t in architecture.build().state_dict().items()}
    unknown = sorted(set(named) - trained - set(built))
    if unknown:
        raise ExhumeError(
            f"checkpoint: {unknown[0]} is no tensor of {architecture} ({len(unknown)} such)"
        )
    for name in sorted(set(named) - trained):
        if name.endswith("num_batches_tracked"):
            continue
        if named[name].shape != built[name].shape or not torch.equal(
            named[name].to(built[name].dtype), built[name]
        ):
            raise ExhumeError(
                f"checkpoint: {name} is not trained, but differs from what {architecture} has; "
                "load it in the factory"
            )


# A network in which adapters, and perhaps whole tensors, are trained; all else stands still.
#
# B begins at 0, so that A's gradient is 0 in the first step, and A stays where it is. The network's
# parameters are B of every adapted layer and what is trained whole: what fine-tuning with LoRA changes.


class AdaptedLinear(nn.Module):
    """x (W_0 + s B A)^T + b, of which A is no parameter; B is a layer that sees s A x."""

    first: Tensor

    def __init__(self, layer: nn.Module, first: Tensor, scaling: float, *, turned: bool) -> None:
        super().__init__()
        weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
        self.register_buffer("first", scaling * first.detach().to(weight.dtype))
        self.weight = nn.Parameter(weight.T) if turned else weight
        self.bias = bias
        self.second = nn.Linear(len(first), len(self.weight), bias=False, dtype=weight.dtype)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.second(F.linear(x, self.first))
        return F.linear(x, self.weight, self.bias) + added


def adapted(
    module: nn.Module,
    first: Mapping[str, Tensor],
    scaling: float,
    whole: Collection[str] = (),
    turned: Collection[str] = (),
) -> nn.Module:
    """A copy of the module at its present weights, with adapters that add nothing yet.

    first: A (r, in) by the layer's name; whole: names of parameters that are trained as they are; turned: see
    `Adapter`.
    """
    network = copy.deepcopy(module)
    for name, a in first.items():
        layer = network.get_submodule(name)
        if not isinstance(layer, nn.Linear) and type(layer).__name__ != _TURNED:
            kind = type(layer).__name__
            raise ExhumeError(
                f"adapter: {name} is a {kind}; adapters of nn.Linear and Conv1D are read so far"
            )
        holder, _, last = name.rpartition(".")
        own = AdaptedLinear(layer, a, scaling, turned=name in turned)
        setattr(network.get_submodule(holder), last, own)
    trained = {f"{name}.second.weight" for name in first} | set(whole)
    for name, part in network.named_modules():
        for short, parameter in list(part.named_parameters(recurse=False)):
            full = f"{name}.{short}" if name else short
            if full not in trained:
                delattr(part, short)
                part.register_buffer(short, parameter.detach().clone())
    if not any(True for _ in network.parameters()):
        raise ExhumeError("adapter: it adapts no layer of this model")
    return network
