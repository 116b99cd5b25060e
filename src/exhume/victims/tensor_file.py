"""Named tensors from a file that somebody else wrote, without running anything in it."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from exhume.contract import ExhumeError

__all__ = ["read_tensors"]

_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
_NESTED = ("state_dict", "model_state_dict", "model")  # where training loops put the weights


def read_tensors(path: Path, what: str = "checkpoint") -> tuple[dict[str, Tensor], list[str]]:
    """The tensors by name, and sentences on what was done to find them. what: begins every complaint.

    A `.safetensors` file, or whatever `torch.load(weights_only=True)` accepts: that reads tensors and plain
    containers and refuses a pickle that would import anything. Prefixes of wrapped modules are taken off.
    """
    if not path.exists():
        raise ExhumeError(f"{what}: there is no file {path}")
    if not path.is_file():
        raise ExhumeError(f"{what}: {path} is a folder; name the file of weights in it")
    if path.stat().st_size == 0:
        raise ExhumeError(f"{what}: {path} is empty")
    loaded = _safe(path, what) if path.suffix == ".safetensors" else _pickled(path, what)
    tensors, told = _state(loaded, path, what)
    return _without_prefixes(tensors, what), told


def _safe(path: Path, what: str) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error, what) from error


def _pickled(path: Path, what: str) -> Any:
    if _scripted(path):
        raise ExhumeError(
            f"{what}: {path} is a TorchScript archive, which holds code; "
            "save model.state_dict() or a .safetensors file instead"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch guesses at causes; ours is the sentence below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        if wanted or _is_pickle(path):
            named = f" ({wanted.group(1)})" if wanted else ""
            raise ExhumeError(
                f"{what}: {path} needs Python code to be loaded{named}, which is never run; save "
                "model.state_dict() or a .safetensors file instead"
            ) from error
        raise _damaged(path, ValueError("no pickle of tensors"), what) from error
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError) as error:
        raise _damaged(path, error, what) from error


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"\x80"


def _scripted(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _damaged(path: Path, error: Exception, what: str) -> ExhumeError:
    first = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return ExhumeError(f"{what}: {path} is truncated, damaged or not a file of weights ({first})")


def _state(loaded: Any, path: Path, what: str) -> tuple[dict[str, Tensor], list[str]]:
    told = []
    for name in _NESTED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping):
            loaded = loaded[name]
            told.append(f"The weights are the entry {name!r} of the file.")
            break
    if not isinstance(loaded, Mapping):
        raise ExhumeError(
            f"{what}: {path} holds {type(loaded).__name__}, not a state dict of named tensors"
        )
    tensors = {
        str(name): value.detach() for name, value in loaded.items() if isinstance(value, Tensor)
    }
    if not tensors:
        raise ExhumeError(f"{what}: {path} holds no tensors")
    others = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        told.append(f"Entries that are no tensors were left out: {', '.join(others[:5])}.")
    return tensors, told


def _without_prefixes(named: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    bare: dict[str, Tensor] = {}
    for name, tensor in named.items():
        short = name
        while short.startswith(_PREFIXES):
            short = short.split(".", 1)[1]
        if short in bare:
            raise ExhumeError(f"{what}: two tensors are called {short} once prefixes are gone")
        bare[short] = tensor
    return bare
