"""The user's own `torch.utils.data.Dataset` by name: `package.module:dataset` or `file.py:dataset`.

The name stands for a dataset, or for a function that returns one. Every item is a pair (input, label):
an image (a Pillow image, or numbers: uint8, or float in [0, 1]), a vector of floats, or a sequence of token
numbers (integers) of one length. Records are taken in order, once; transforms that draw at random give one
draw, always the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Progress, Records, silent
from exhume.data.arrays import Array, checked_inputs, named_labels
from exhume.data.memory_guard import check_memory
from exhume.data.tokens import Reading, tokens_of
from exhume.naming import called, first_line, named, seeded_globals

__all__ = ["check_classes", "from_dataset", "named_dataset"]

_STAGE = "read records"
_DRAW = Key.from_seed(0).fold("dataset")


def named_dataset(
    spec: str,
    *,
    root: Path | None = None,
    reading: Reading = Reading(),  # noqa: B008 - frozen
    progress: Progress = silent,
) -> Records:
    found = named(spec, "data", root)
    with seeded_globals(_DRAW):
        if not _is_dataset(found) and not isinstance(found, Records):
            found = called(found, spec, "data")
        if isinstance(found, Records):
            return found
        if not _is_dataset(found):
            raise ExhumeError(
                f"data: {spec} gives a {type(found).__name__}, not a dataset with a length and items"
            )
        return from_dataset(found, f"data: {spec}", reading=reading, progress=progress)


def from_dataset(
    dataset: Any,
    where: str,
    *,
    reading: Reading = Reading(),  # noqa: B008 - frozen
    progress: Progress = silent,
) -> Records:
    """Every item of a dataset. where: begins every complaint."""
    count = len(dataset)
    if not count:
        raise ExhumeError(f"{where} holds no records")
    first, label = _item(dataset, 0, where)
    check_memory(2 * count * first.nbytes, f"{where}: {count} records")
    inputs = np.empty((count, *first.shape), dtype=first.dtype)
    labels = [label]
    inputs[0] = first
    progress(_STAGE, 1, count)
    for index in range(1, count):
        values, label = _item(dataset, index, where)
        if values.shape != first.shape or values.dtype != first.dtype:
            raise ExhumeError(
                f"{where}: record {index} is {_shown(values)}, record 0 is {_shown(first)}; "
                "bring all to one size and type"
            )
        inputs[index] = values
        labels.append(label)
        progress(_STAGE, index + 1, count)
    numbers, classes = named_labels(np.asarray(labels), getattr(dataset, "classes", None), where)
    if inputs.ndim == 2 and inputs.dtype.kind in "iu":
        tokens, vocabulary = tokens_of(inputs, reading, where)
        return Records(tokens, numbers, classes, vocabulary)
    return Records(torch.from_numpy(_records(inputs, where)), numbers, classes)


def check_classes(records: Records, where: str) -> None:
    """Refuse a class that no record has: a classifier cannot learn it, nor can an attack find it."""
    absent = set(range(len(records.classes))) - set(records.labels.tolist())
    if absent:
        names = ", ".join(records.classes[index] for index in sorted(absent)[:5])
        raise ExhumeError(
            f"{where}: no record of class {names}; leave the class out, or add records"
        )


def _is_dataset(found: object) -> bool:
    return (
        hasattr(found, "__len__")
        and hasattr(found, "__getitem__")
        and not isinstance(found, type | str)
    )


def _item(dataset: Any, index: int, where: str) -> tuple[Array, int | float]:
    try:
        item = dataset[index]
    except (Exception, SystemExit) as error:
        raise ExhumeError(
            f"{where}: record {index} raised {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ExhumeError(
            f"{where}: record {index} is a {type(item).__name__}, a pair (input, label) is needed"
        )
    return _values(item[0], f"{where}: record {index}"), _label(item[1], f"{where}: record {index}")


def _values(value: Any, where: str) -> Array:
    """Channels first for images that say which axis is which."""
    if isinstance(value, Image.Image):
        pixels = value.convert("L" if value.mode in ("1", "L", "LA") else "RGB")
        values = np.asarray(pixels)
        return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
    values = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if values.dtype.kind not in "fiub" or values.ndim not in (1, 2, 3):
        raise ExhumeError(
            f"{where}: the input is {_shown(values)}; legal are numbers: a vector, an image, tokens"
        )
    return values


def _label(value: Any, where: str) -> int | float:
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise ExhumeError(f"{where}: the label is {_shown(array)}; legal is one whole number")
    number: int | float = array.reshape(()).item()
    return number


def _records(inputs: Array, where: str) -> Array:
    """torch's images are channels first, also where the last side could be taken for channels."""
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3) and inputs.shape[3] in (1, 3):
        turned = checked_inputs(inputs.reshape(*inputs.shape[:2], 1, -1), where)
        return turned.reshape(inputs.shape)
    return checked_inputs(inputs, where)


def _shown(values: Array) -> str:
    return f"{values.dtype} of shape {values.shape}"
