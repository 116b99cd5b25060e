"""Content-addressed shards: caching and resume in one place, so that the functions themselves stay pure.

A piece of work is named by everything it depends on (`address`). A `FolderStore` writes each piece
atomically and checks it on reading; a `NullStore` keeps nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Layout, Records, Shard, Store

_PART = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Readers see the old file or the whole new one, even across a power cut.

    What an earlier write of this file left behind when it was killed is removed.
    """
    remove_leftovers(path.parent, of=path.name)
    _write(path, content, mode)


def leftover_of(path: Path) -> str:
    """The name of the file that was being written there; empty if it is no part of ours."""
    found = _PART.fullmatch(path.name)
    return found[1] if found else ""


def remove_leftovers(folder: Path, *, of: str = "", below: bool = False) -> None:
    """Parts whose writers are gone. of: a file's name, for its parts alone; below: also in its folders.

    A writer holds its part by a lock, which ends with the writer however that ends.
    """
    try:
        candidates = [
            path for path in folder.iterdir() if leftover_of(path) or (below and path.is_dir())
        ]
    except OSError:  # whoever writes there says what is wrong with the folder
        return
    for path in candidates:
        if path.is_dir():
            if below and not path.is_symlink():
                remove_leftovers(path, of=of, below=True)
        elif not of or leftover_of(path) == of:
            _remove_left(path)


def _remove_left(partial: Path) -> None:
    try:
        descriptor = os.open(partial, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:  # gone, or not ours to remove
        return
    try:
        if _hold(descriptor):
            partial.unlink(missing_ok=True)
    except OSError:  # it may not be locked or removed here
        return
    finally:
        os.close(descriptor)


def _hold(descriptor: int) -> bool:
    """Lock a part as long as it is open; False: another process has it, or has removed it."""
    if sys.platform == "win32":  # where an open file cannot be removed
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(descriptor).st_nlink > 0


def _held_part(path: Path, mode: int) -> tuple[Path, int]:
    """A new file beside the path, held by this process, and its descriptor."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            if _hold(descriptor):
                return partial, descriptor
        except OSError:  # a file system without locks: nobody can take the part for a leftover
            return partial, descriptor
        os.close(descriptor)  # somebody cleaned up in the moment before


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        partial, descriptor = _held_part(path, mode)
    except OSError as error:
        raise ExhumeError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)  # while it is still held
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ExhumeError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def digest(value: Tensor | Records) -> str:
    """Hash of contents, shape and type."""
    tensors = (value.inputs, value.labels) if isinstance(value, Records) else (value,)
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        state.update(tensor.detach().cpu().contiguous().numpy().data)
    return state.hexdigest()


def describe(value: object) -> object:
    """A frozen dataclass (or a plain value) as JSON-able data, class names included.

    A field that does not count when two values are compared does not count here either.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Layout):
        return [[name, list(shape)] for name, shape in zip(value.names, value.shapes, strict=True)]
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: describe(getattr(value, f.name)) for f in fields(value) if f.compare}
        return {"type": type(value).__name__, **named}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): describe(item) for name, item in value.items()}
    raise TypeError(f"cannot describe {type(value).__name__}: use dataclasses of plain values")


def address(function: str, config: object, inputs: tuple[str, ...], key: Key, index: int) -> str:
    """The name of one piece of work: what computes it, how, from what, with which randomness, which part."""
    text = json.dumps([function, describe(config), inputs, key.digest, index], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cached(store: Store, address: str, make: Callable[[], Mapping[str, Tensor]]) -> Shard:
    """What the store holds for the address; else made now and saved."""
    held = store.load(address)
    if held is None:
        made = make()
        held = made if isinstance(made, Shard) else Shard(made)
        store.save(address, held)
    return held


@dataclass(frozen=True)
class NullStore:
    """Keeps nothing."""

    def load(self, address: str) -> Shard | None:
        return None

    def save(self, address: str, shard: Mapping[str, Tensor]) -> None:
        return None


@dataclass(frozen=True)
class FolderStore:
    """One safetensors file per piece, in a folder only its owner can read."""

    folder: Path

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ExhumeError(f"cannot create {self.folder}: {error.strerror or error}") from error
        remove_leftovers(self.folder)

    def _path(self, address: str) -> Path:
        return self.folder / f"{address}.safetensors"

    def load(self, address: str) -> Shard | None:
        path = self._path(address)
        if not path.exists():
            return None
        try:
            shard, expected = _read(path)
            return shard if _content(shard) == expected else None
        except (SafetensorError, OSError, ValueError, TypeError, RecursionError):
            return None

    def save(self, address: str, shard: Mapping[str, Tensor]) -> None:
        write_shard(self._path(address), shard)


def write_shard(path: Path, shard: Mapping[str, Tensor]) -> None:
    """One safetensors file; its metadata are the notes as JSON, and a digest of everything."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in shard.items()}
    whole = Shard(plain, shard.notes if isinstance(shard, Shard) else None)
    about = {"notes": json.dumps(whole.notes)} if whole.notes else {}
    if list(plain) != sorted(plain):  # safetensors sorts names
        about["order"] = json.dumps(list(plain))
    _write(path, _settled(save(plain, about | {"digest": _content(whole)})), 0o600)


def _settled(content: bytes) -> bytes:
    """The file's bytes with its metadata in order, which safetensors leaves to chance."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers stay aligned
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def read_shard(path: Path) -> Shard:
    """What such a file holds; safetensors' own errors, or `ValueError`, where it cannot be read."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Shard, str | None]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = file.metadata() or {}
    order = json.loads(about.get("order", "null"))
    if isinstance(order, list) and sorted(map(str, order)) == sorted(tensors):
        tensors = {str(name): tensors[str(name)] for name in order}
    return Shard(tensors, json.loads(about.get("notes", "{}"))), about.get("digest")


def _content(shard: Shard) -> str:
    named = "".join(f"{name}:{digest(shard[name])};" for name in sorted(shard))
    notes = json.dumps(shard.notes, sort_keys=True) if shard.notes else ""
    return hashlib.sha256(f"{named}{notes}".encode()).hexdigest()
