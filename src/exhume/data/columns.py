"""What the columns of vectors in an .npz file are called: its array `columns` says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from exhume.core.contract import ExhumeError
from exhume.core.notation import BROKEN_ARRAYS
from exhume.core.records import Column

__all__ = ["columns_of"]


def columns_of(source: str) -> tuple[Column, ...]:
    """Of a set that `load` reads as vectors, in their order; none where nobody named them."""
    path = Path(source).expanduser()
    return _in_arrays(path) if path.suffix == ".npz" else ()


def _in_arrays(path: Path) -> tuple[Column, ...]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if "columns" not in file.files:
                return ()
            names, width = file["columns"], file[_inputs(file.files)].shape[-1]
    except BROKEN_ARRAYS as error:
        raise ExhumeError(f"{path}: cannot read columns ({str(error)[:300]})") from error
    if names.ndim != 1 or names.dtype.kind != "U" or len(names) != width:
        raise ExhumeError(
            f"{path}: columns has shape {names.shape} of {names.dtype}; legal is a list of {width} texts"
        )
    return tuple(Column(str(name)) for name in names)


def _inputs(names: list[str]) -> str:
    return next(name for name in ("x", "inputs", "images", "x_train", *names) if name in names)
