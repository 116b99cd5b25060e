"""The user's cache folder: one safetensors file per parsed set, written whole or not at all.

A file is believed only if its content has the digest that was pinned for the set, or, where no
pin is known, the digest that was recorded when it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.store.shards import write_atomically

_FORMAT = "exhume data 1"


class Damaged(ExhumeError):  # noqa: N818
    """A cache file that is not what was written there."""


@dataclass(frozen=True, eq=False)
class Content:
    """What one cache file holds."""

    tensors: Mapping[str, Tensor]
    about: Mapping[str, str]

    def digest(self) -> str:
        """sha256 of names, types, shapes, bytes and notes; the same for every source."""
        total = hashlib.sha256(json.dumps(sorted(self.about.items())).encode())
        for name in sorted(self.tensors):
            tensor = self.tensors[name].contiguous()
            total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            total.update(tensor.numpy().data)
        return total.hexdigest()


def folder() -> Path:
    """`EXHUME_CACHE`, else `exhume` in the user's cache folder."""
    if own := os.environ.get("EXHUME_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "exhume"


def read(path: Path, digest: str | None) -> Content:
    """The content of a cache file, checked against the pinned digest or else the recorded one."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from error
    recorded = notes.pop("digest", None)
    if notes.pop("format", None) != _FORMAT:
        raise _damaged(path, f"its format is not {_FORMAT!r}")
    content = Content(tensors, notes)
    if content.digest() != (digest or recorded):
        raise _damaged(path, "its content differs from what was fetched")
    return content


def write(path: Path, content: Content) -> None:
    """All or nothing."""
    notes = {**content.about, "digest": content.digest(), "format": _FORMAT}
    tensors = {name: tensor.contiguous() for name, tensor in content.tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save(tensors, notes))
    except (SafetensorError, OSError, ExhumeError) as error:
        raise ExhumeError(
            f"{path}: cannot be written ({error.__cause__ or error}); set EXHUME_CACHE to a folder with "
            "room in it"
        ) from error


def _damaged(path: Path, why: str) -> Damaged:
    return Damaged(
        f"{path}: this cache file is damaged or was altered ({why}); delete it, or replace it with "
        f"`exhume data fetch {path.stem}`"
    )
