"""Records in an `.npz` file: images (3 or 4 axes) or tabular vectors (2 axes), and their labels.

Images are uint8, or float in [0, 1]; (n, h, w), (n, h, w, c) or (n, c, h, w) with 1 or 3 channels.
Vectors keep their values. An array called tokens or input_ids holds token sequences.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exhume.core.contract import ExhumeError, Records
from exhume.core.notation import BROKEN_ARRAYS
from exhume.data.memory_guard import check_memory
from exhume.data.tokens import Reading, tokens_of

__all__ = ["MOST_CLASSES", "Array", "checked_inputs", "named_labels", "npz"]

MOST_CLASSES = 100_000
"""A label beyond this is taken for a mistake rather than for a class."""

_TOKENS = (("tokens",), ("input_ids",))
_INPUTS = (("x",), ("inputs",), ("images",), ("x_train", "x_test"), *_TOKENS)
_LABELS = (("y",), ("labels",), ("y_train", "y_test"))

Array = NDArray[Any]


def npz(path: Path, reading: Reading = Reading()) -> Records:  # noqa: B008 - frozen
    """Records of one file; an optional array `classes` names the classes."""
    with _reading(path), path.open("rb") as stream:
        if zipfile.is_zipfile(stream):
            with zipfile.ZipFile(stream) as archive:
                size = sum(member.file_size for member in archive.infolist())
            check_memory(3 * size, f"{path}: arrays of {size:,} bytes")
        stream.seek(0)
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ExhumeError(f"{path}: one bare array; an .npz file with arrays x and y is needed")
        x, y = _pick(path, file.files, _INPUTS), _pick(path, file.files, _LABELS)
        inputs = _joined({name: file[name] for name in x}, path)
        labels = _joined({name: file[name] for name in y}, path)
        names = np.asarray(file["classes"]) if "classes" in file.files else None
    if len(inputs) != len(labels):
        raise ExhumeError(f"{path}: {len(inputs)} inputs but {len(labels)} labels")
    if inputs.size == 0:
        raise ExhumeError(f"{path}: {x[0]} has shape {inputs.shape}, which holds no records")
    numbers = _checked_labels(labels, f"{path}: {y[0]}")
    classes = None if names is None else _class_names(names, int(numbers.max()), path)
    known = named_labels(numbers, classes, f"{path}: {y[0]}")
    if x in _TOKENS:
        tokens, vocabulary = tokens_of(inputs, reading, f"{path}: {x[0]}")
        return Records(tokens, *known, vocabulary)
    return Records(torch.from_numpy(checked_inputs(inputs, f"{path}: {x[0]}")), *known)


def _pick(path: Path, found: list[str], choices: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    for names in choices:
        if set(names) <= set(found):
            return names
    legal = ", ".join(" with ".join(names) for names in choices)
    raise ExhumeError(f"{path}: holds the arrays {', '.join(found) or 'none'}; needed is {legal}")


def _joined(arrays: Mapping[str, Any], path: Path) -> Array:
    parts = list(arrays.values())
    if not all(isinstance(part, np.ndarray) for part in parts):
        raise ExhumeError(f"{path}: {next(iter(arrays))} is no array")
    if any(part.ndim == 0 or part.shape[1:] != parts[0].shape[1:] for part in parts):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ExhumeError(f"{path}: shapes do not fit: {shapes}")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def checked_inputs(values: Array, where: str) -> Array:
    """(n, d) or (n, c, h, w) float32."""
    if values.dtype.kind not in "fiub":
        raise ExhumeError(f"{where} holds {values.dtype}; legal are numbers")
    if values.ndim == 2:
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
            return _finite(values.astype(np.float32), where)
    images = _channels_first(values, where)
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images, dtype=np.float32) / np.float32(255)
    if images.dtype.kind != "f":
        raise ExhumeError(f"{where} holds images of {images.dtype}; legal are uint8 and float")
    _finite(images, where)
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 1:
        raise ExhumeError(
            f"{where} holds float images from {low:g} to {high:g}; legal is [0, 1], or uint8"
        )
    return np.ascontiguousarray(images, dtype=np.float32)


def _channels_first(values: Array, where: str) -> Array:
    if values.ndim == 3:
        return values[:, None]
    first, last = values.ndim == 4 and values.shape[1] in (1, 3), values.shape[-1] in (1, 3)
    if values.ndim != 4 or first == last:
        why = "both axis 1 and axis 3 could be channels" if first else "no channels of size 1 or 3"
        why = why if values.ndim == 4 else f"{values.ndim} axes"
        raise ExhumeError(
            f"{where} has shape {values.shape} ({why}); legal are (n, d) vectors and images "
            "(n, h, w), (n, h, w, c) or (n, c, h, w) with c 1 or 3"
        )
    return values if first else values.transpose(0, 3, 1, 2)


def _finite(values: Array, where: str) -> Array:
    bad = ~np.isfinite(values)
    if bad.any():
        record = int(np.argwhere(bad)[0, 0])
        raise ExhumeError(f"{where} holds NaN or infinity, first in record {record}")
    return values


def named_labels(
    values: Array, classes: Sequence[str] | None, where: str
) -> tuple[Tensor, tuple[str, ...]]:
    """(n,) labels and the classes' names: those given, or the numbers that occur.

    A number that no record has is no class.
    """
    numbers = _checked_labels(values, where)
    if classes is None:
        found, places = np.unique(numbers, return_inverse=True)
        return torch.from_numpy(places), tuple(str(number) for number in found)
    if numbers.max() >= len(classes):
        record = int(numbers.argmax())
        raise ExhumeError(
            f"{where}: record {record} has label {numbers.max()}, legal are 0 to {len(classes) - 1}"
        )
    return torch.from_numpy(numbers), tuple(str(name) for name in classes)


def _checked_labels(values: Array, where: str) -> NDArray[np.int64]:
    """(n,) class numbers; (n, 1) is taken too."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ExhumeError(f"{where} has shape {values.shape}; legal is one label per record, (n,)")
    whole = values.dtype.kind in "iub" or (
        values.dtype.kind == "f" and np.isfinite(values).all() and (values % 1 == 0).all()
    )
    if not whole:
        raise ExhumeError(f"{where} holds labels that are not whole numbers ({values.dtype})")
    low, high = values.min(), values.max()
    if low < 0:
        raise ExhumeError(f"{where} holds the negative label {low}; labels count from 0")
    if high >= MOST_CLASSES:
        raise ExhumeError(f"{where} holds the label {high}; labels stay below {MOST_CLASSES}")
    return values.astype(np.int64)


def _class_names(names: Array, largest: int, path: Path) -> list[str]:
    if names.ndim != 1 or names.dtype.kind != "U" or len(names) <= largest:
        raise ExhumeError(
            f"{path}: classes has shape {names.shape} of {names.dtype}; "
            f"legal is a list of at least {largest + 1} texts"
        )
    return list(names)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns what numpy raises on a damaged or unsafe file into one sentence."""
    try:
        yield
    except BROKEN_ARRAYS as error:
        if isinstance(error, ValueError) and "pickle" in str(error).lower():
            raise ExhumeError(
                f"{path}: holds pickled Python objects, which are never loaded; "
                "save plain arrays of numbers with numpy.savez"
            ) from error
        raise ExhumeError(f"{path}: truncated or damaged .npz file ({str(error)[:300]})") from error
