"""A file of weights as a release of a known architecture: a state dict, a LoRA adapter, a difference.

An adapter or a difference is read against a base state (against_base.py), and the base is the known start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Layout, Weights
from exhume.victims.against_base import Against, read_against, read_alone
from exhume.victims.tensor_file import bare_name

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
    if base is None:
        if delta:
            raise ExhumeError("base: a difference needs the state that it is added to")
        states = read_alone(path, trust=trust)
    else:
        against = Against(base, "delta" if delta else None, scaling)
        states = read_against(path, against, trust=trust)
    layout = architecture.layout
    _check_constants(states.after, architecture)
    flat = _flat(states.after, layout, "checkpoint")
    first = None if states.before is None else _flat(states.before, layout, "base")
    return Released(Weights(flat[None], layout), first, states.notes)


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
