"""Manifests: a small JSON file beside the weights that says what they are, and the checks before use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.store.shards import write_atomically

MANIFEST = "manifest.json"
_SCHEMA = 1
_NEEDED = {
    "network": dict,
    "first": str,
    "second": str,
    "feature": list,
    "answer": list,
    "sha256": str,
    "tensors": dict,
}
_KINDS = {"bodies": list, "index": int}


def empty_folder(folder: Path, *, mode: int) -> None:
    """Make it; one that already holds something is left alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        if any(folder.iterdir()):
            raise ExhumeError(f"{folder}: holds files already; choose a new or empty folder")
        folder.chmod(mode)
    except OSError as error:
        raise ExhumeError(f"cannot write to {folder}: {error.strerror or error}") from error


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def about_file(content: bytes, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The file's checksum, and what is in it."""
    tensors = {
        name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
        for name, t in sorted(state.items())
    }
    return {"sha256": checksum(content), "tensors": tensors}


def write_manifest(folder: Path, content: Mapping[str, Any], *, mode: int) -> None:
    text = json.dumps({"schema": _SCHEMA, **content}, indent=2, sort_keys=True)
    write_atomically(folder / MANIFEST, f"{text}\n".encode(), mode=mode)


def read_manifest(folder: Path, kind: str, more: Sequence[str]) -> dict[str, Any]:
    """The manifest of a folder, of this kind, with all fields that it needs."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ExhumeError(f"{folder}: there is no {MANIFEST}, so this is no exported {kind}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as damage:
        raise ExhumeError(f"{path}: not readable as JSON ({damage})") from None
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA:
        raise ExhumeError(f"{path}: this version reads manifests of schema {_SCHEMA}")
    if content.get("kind") != kind:
        raise ExhumeError(f"{path}: describes a {content.get('kind')!r}, a {kind!r} is needed")
    for name, wanted in {**_NEEDED, **{n: _KINDS[n] for n in more}}.items():
        if not isinstance(content.get(name), wanted):
            raise ExhumeError(f"{path}: {name!r} is missing or no {wanted.__name__}")
    return content


def read_part(path: Path, manifest: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    """The tensors of a part and its checksum, if both are what the manifest says."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ExhumeError(f"{path}: is missing, though the manifest names it") from None
    except OSError as error:
        raise ExhumeError(f"{path}: cannot be read ({error.strerror or error})") from error
    found = checksum(content)
    if found != manifest["sha256"]:
        raise ExhumeError(f"{path}: was altered or damaged; its checksum is not the manifest's")
    try:
        state: dict[str, Tensor] = load(content)
    except (SafetensorError, ValueError) as error:
        raise ExhumeError(f"{path}: is no safetensors file ({error})") from error
    said = {name: tuple(t["shape"]) for name, t in manifest["tensors"].items()}
    if said != {name: tuple(tensor.shape) for name, tensor in state.items()}:
        raise ExhumeError(f"{path}: holds other tensors than the manifest says")
    return state, found


def owned(folder: Path, names: Sequence[str]) -> None:
    """Refuse a client's folder that anybody else can look into: it holds the selector."""
    if not folder.is_dir():
        raise ExhumeError(f"client: there is no folder {folder}")
    for path in (folder, *(folder / name for name in (MANIFEST, *names))):
        mode = path.stat().st_mode & 0o777 if path.exists() else 0
        if mode & 0o077:
            private = "700" if path.is_dir() else "600"
            raise ExhumeError(
                f"client: others can read {path} (mode {mode:o}), and it holds the selector: "
                f"chmod {private} {path}"
            )
