"""Updates to be audited, from files: a gradient, two states of one model, or a folder of a recorded run.

Nothing is executed: safetensors, or torch files read with `weights_only=True`.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from exhume.contract import ExhumeError, Gradient, Layout, Records, Secret
from exhume.victims.payload import payload_from_named, payload_from_states
from exhume.victims.recorded import recorded_in

__all__ = [
    "Update",
    "from_gradient",
    "from_recording",
    "from_states",
    "keep_secret",
    "read_state",
    "with_state",
]

_PREFIXES = ("module.", "_orig_mod.")  # of data-parallel and of compiled modules


@dataclass(frozen=True, eq=False)
class Update:
    """One client's update, and the module at the weights it was taken at."""

    payload: Gradient  # one release
    module: nn.Module
    client: str = "client"
    round: int = 1
    rate: float | None = None  # None: a plain gradient
    steps: int = 1
    batch_size: int | None = None


def from_gradient(path: Path, module: nn.Module, before: Path | None = None) -> Update:
    """A gradient in a file, taken at `before` or at the module's present weights."""
    here = module if before is None else with_state(module, read_state(before))
    return Update(payload_from_named(read_state(path), here), here)


def from_states(
    before: Path, after: Path, module: nn.Module, *, rate: float, steps: int = 1
) -> Update:
    """The states before and after a client's plain SGD."""
    start = read_state(before)
    here = with_state(module, start)
    payload = payload_from_states(start, read_state(after), here, rate, steps)
    return Update(payload, here, rate=rate, steps=steps)


def from_recording(folder: Path, module: nn.Module) -> list[Update]:
    """All updates of a folder that a `Recording` has written."""
    updates = []
    for told in recorded_in(folder):
        start, end = (read_state(folder / name) for name in (told.before, told.after))
        here = with_state(module, start)
        payload = payload_from_states(start, end, here, told.rate, told.steps)
        size = told.batch_size or None
        updates.append(Update(payload, here, told.client, told.round, told.rate, told.steps, size))
    return updates


def keep_secret(records: Records) -> Secret:
    """One batch (b, *shape) of private records, for scoring only."""
    return Secret(Records(records.inputs[None], records.labels[None], records.classes))


def read_state(path: Path) -> dict[str, Tensor]:
    """Names to tensors. Prefixes of wrapped modules are taken off."""
    if not path.is_file():
        raise ExhumeError(f"update: there is no file {path}")
    content = _safe(path) if path.suffix == ".safetensors" else _torch(path)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    named = isinstance(content, Mapping) and all(
        isinstance(n, str) and isinstance(t, Tensor) for n, t in content.items()
    )
    if not named or not content:
        raise ExhumeError(f"update: {path} does not hold tensors by name")
    assert isinstance(content, Mapping)
    return {_bare(name): tensor for name, tensor in content.items()}


def _safe(path: Path) -> object:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as damage:
        raise ExhumeError(f"update: {path} is not readable as safetensors ({damage})") from None


def _torch(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ExhumeError(
            f"update: {path} holds more than tensors, and a pickle is not executed; save its state dict "
            "with torch.save, or as safetensors"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as damage:
        first = str(damage).splitlines()[0] if str(damage) else type(damage).__name__
        raise ExhumeError(f"update: {path} is not readable as a torch file ({first})") from None


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def with_state(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy at these weights; buffers that the state lacks stay as they are."""
    own = copy.deepcopy(module)
    layout = Layout.of(own)
    lost = [name for name in layout.names if name not in state]
    if lost:
        raise ExhumeError(f"payload: the state dicts lack {', '.join(lost)}")
    targets = dict(own.named_parameters()) | dict(own.named_buffers())
    with torch.no_grad():
        for name, target in targets.items():
            if name not in state:
                continue
            if state[name].shape != target.shape:
                raise ExhumeError(
                    f"parameter {name}: shape {tuple(state[name].shape)} given, "
                    f"{tuple(target.shape)} expected"
                )
            target.copy_(state[name])
    return own
