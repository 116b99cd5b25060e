"""A file of weights as a release of a known architecture: a state dict, a LoRA adapter, a difference.

An adapter or a difference releases the whole network to everybody who has the base model, which is
usually public. Both are therefore read against a base state, and the base is the known start:

    LoRA        W = W_0 + s B A        A (r, in), B (out, r), s = alpha / r
    difference  W = W_0 + D
    part        W = what the file has, else W_0
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from exhume.contract import Architecture, ExhumeError, Layout, NotApplicable, Weights
from exhume.victims.tensor_file import bare_name, read_tensors

__all__ = ["Released", "release_of_file"]


@dataclass(frozen=True, eq=False)
class Released:
    """One model, the state it started from where that is known, and how it was read."""

    release: Weights  # (1, p)
    base: Tensor | None  # (p,)
    inferred: tuple[str, ...]  # sentences


def release_of_file(
    path: Path,
    architecture: Architecture,
    *,
    base: Path | None = None,
    delta: bool = False,
    scaling: float | None = None,
    trust: bool = False,
) -> Released:
    """base: the state that an adapter, a difference or a part of the weights is added to.

    delta: the file holds differences. scaling: of a LoRA adapter; None reads `adapter_config.json` beside it.
    trust: see `read_tensors`.
    """
    given, told = read_tensors(path, trust=trust)
    named = _by_bare_name(given)
    start = None
    if base is not None:
        start = _by_bare_name(read_tensors(base, "base", trust=trust)[0])
    if any(".lora_" in name for name in named):
        how = scaling if scaling is not None else _scaling(path, named)
        whole, said = _with_adapter(named, _needed(start, "a LoRA adapter"), how)
    elif delta:
        before = _needed(start, "a difference")
        _check_known(named, before)
        whole = before | {n: before[n] + t.to(before[n].dtype) for n, t in named.items()}
        said = f"{len(named)} tensors are differences to the base."
    elif start is not None:
        whole, said = (
            start | named,
            f"{len(named)} of {len(start | named)} tensors are the file's own.",
        )
    else:
        whole, said = named, ""
    layout = architecture.layout
    _check_constants(whole, architecture)
    flat = _flat(whole, layout, "checkpoint")
    first = None if start is None else _flat(start, layout, "base")
    return Released(Weights(flat[None], layout), first, tuple([*told, said] if said else told))


def _by_bare_name(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in named.items():
        short = bare_name(name).replace(".modules_to_save", "").replace(".base_layer", "")
        short = short.replace(".default", "") if ".lora_" in short else short
        if short in found:
            raise ExhumeError(f"checkpoint: two tensors are called {short} once prefixes are gone")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise NotApplicable(
                f"{short}: sparse or quantised values are not read so far", ever=True
            )
        found[short] = tensor
    return found


def _needed(start: dict[str, Tensor] | None, what: str) -> dict[str, Tensor]:
    if start is None:
        raise ExhumeError(f"base: {what} needs the state that it is added to")
    return start


def _check_known(named: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> None:
    for name, tensor in named.items():
        if name not in start:
            raise ExhumeError(f"checkpoint: the base has no {name}")
        if start[name].shape != tensor.shape:
            raise ExhumeError(
                f"checkpoint: {name} has shape {tuple(tensor.shape)}, that of the base "
                f"{tuple(start[name].shape)}"
            )


def _flat(named: Mapping[str, Tensor], layout: Layout, what: str) -> Tensor:
    """(p,) float32, every tensor of the layout."""
    lost = [name for name in layout.names if bare_name(name) not in named]
    if lost:
        raise ExhumeError(f"{what}: it lacks {', '.join(lost[:3])} of {len(layout.names)} tensors")
    chosen = {name: named[bare_name(name)].float() for name in layout.names}
    for (name, tensor), shape in zip(chosen.items(), layout.shapes, strict=True):
        if tuple(tensor.shape) != shape:
            raise ExhumeError(f"{what}: {name} has shape {tuple(tensor.shape)}, {shape} is needed")
        if not bool(torch.isfinite(tensor).all()):
            raise ExhumeError(f"{what}: {name} holds NaN or infinite values")
    return layout.join(chosen)


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


# LoRA


def _with_adapter(
    named: Mapping[str, Tensor], start: Mapping[str, Tensor], scaling: float
) -> tuple[dict[str, Tensor], str]:
    whole = dict(start)
    adapted = []
    for name, first in named.items():
        layer, kind, _ = name.rpartition(".lora_A.weight")
        if not kind:
            if ".lora_" not in name:
                whole[name] = first
            elif not name.endswith(".lora_B.weight"):
                raise NotApplicable(f"{name}: only lora_A and lora_B are read so far", ever=True)
            continue
        weight, second = f"{layer}.weight", named.get(f"{layer}.lora_B.weight")
        if second is None or weight not in start:
            lost = f"{layer}.lora_B.weight" if second is None else f"{weight} in the base"
            raise ExhumeError(f"checkpoint: {name} is there, but there is no {lost}")
        fits = first.ndim == second.ndim == 2 and len(first) == second.shape[1]
        if not fits or (len(second), first.shape[1]) != tuple(start[weight].shape):
            raise ExhumeError(
                f"checkpoint: {layer} adds {tuple(second.shape)} times {tuple(first.shape)} to a weight "
                f"of {tuple(start[weight].shape)}"
            )
        whole[weight] = start[weight].float() + scaling * (second.float() @ first.float())
        adapted.append(layer)
    return whole, f"A LoRA adapter of {', '.join(adapted)}, scaled by {scaling:g}."


def _scaling(path: Path, named: Mapping[str, Tensor]) -> float:
    """alpha / r of the configuration beside the adapter; alpha / sqrt(r) where it says so."""
    config = path.with_name("adapter_config.json")
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        alpha = float(content["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExhumeError(
            f"scaling: {config} with lora_alpha is needed, or the number itself ({type(error).__name__})"
        ) from error
    for option in ("alpha_pattern", "rank_pattern", "use_dora", "fan_in_fan_out"):
        if content.get(option):
            raise NotApplicable(f"{config}: {option} is not read so far; merge it first", ever=True)
    adapters = [t for n, t in named.items() if n.endswith(".lora_A.weight")]
    ranks = {len(tensor) if tensor.ndim else 0 for tensor in adapters}
    if len(ranks) != 1 or 0 in ranks:
        raise ExhumeError(f"checkpoint: adapters of ranks {sorted(ranks)}, one is needed")
    rank = ranks.pop()
    return alpha / (math.sqrt(rank) if content.get("use_rslora") else rank)
