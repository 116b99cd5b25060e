"""Records from arrays: an `.npz` file, or every item of a torch `Dataset` of the user's own.

A file holds images (3 or 4 axes) or tabular vectors (2 axes), and their labels. Images are uint8, or float
in [0, 1]; (n, h, w), (n, h, w, c) or (n, c, h, w) with 1 or 3 channels. Vectors keep their values. An array
called tokens or input_ids holds token sequences.

A Dataset goes by name: `package.module:dataset` or `file.py:dataset`, which stands for a dataset, or for a
function that returns one. Every item is a pair (input, label): an image (a Pillow image, or numbers: uint8,
or float in [0, 1]), a vector of floats, or a sequence of token numbers (integers) of one length. Records are
taken in order, once; transforms that draw at random give one draw, always the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Progress, Records, silent
from exhume.core.notation import BROKEN_ARRAYS
from exhume.core.own_code import called, first_line, named, seeded_globals
from exhume.core.records import Column, rows_of_regression
from exhume.readers.tokens import TextReading, tokens_of
from exhume.store.memory import check_memory

MOST_CLASSES = 100_000
"""A label beyond this is taken for a mistake rather than for a class."""

_TOKENS = (("tokens",), ("input_ids",))
_INPUTS = (("x",), ("inputs",), ("images",), ("x_train", "x_test"), *_TOKENS)
_LABELS = (("y",), ("labels",), ("y_train", "y_test"))

Array = NDArray[Any]


def npz(path: Path, reading: TextReading = TextReading()) -> Records:  # noqa: B008 - frozen
    """Records of one file. Optional arrays are names: `classes` of the classes, `columns` of a vector's."""
    with _reading(path), path.open("rb") as stream:
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ExhumeError(f"{path}: one bare array; an .npz file with arrays x and y is needed")
        x, y = _pick(path, file.files, _INPUTS), _pick(path, file.files, _LABELS)
        names = [name for name in ("classes", "columns") if name in file.files]
        needed = sum(_bytes_read(file, name) for name in (*x, *y, *names))
        check_memory(needed, f"{path}: its arrays")
        labels = _joined({name: file[name] for name in y}, path)
        if labels.size and not reading.targets:  # said before the inputs are unpacked
            numbers = _checked_labels(labels, f"{path}: {y[0]}")
        inputs = _joined({name: file[name] for name in x}, path)
        given = {name: np.asarray(file[name]) for name in names}
    if len(inputs) != len(labels):
        raise ExhumeError(f"{path}: {len(inputs)} inputs but {len(labels)} labels")
    if inputs.size == 0:
        raise ExhumeError(f"{path}: {x[0]} has shape {inputs.shape}, which holds no records")
    if reading.targets:
        return rows_in_arrays(inputs, labels, str(path))
    classes = columns = None
    if "classes" in given:
        classes = _names_in(given["classes"], f"{path}: classes", least=int(numbers.max()) + 1)
    known = named_labels(numbers, classes, f"{path}: {y[0]}")
    if x in _TOKENS:
        tokens, vocabulary = tokens_of(inputs, reading, f"{path}: {x[0]}")
        return Records(tokens, *known, vocabulary)
    if "columns" in given and inputs.ndim == 2:
        columns = _names_in(given["columns"], f"{path}: columns", exactly=inputs.shape[1])
    values = torch.from_numpy(checked_inputs(inputs, f"{path}: {x[0]}"))
    return Records(values, *known, columns=tuple(Column(name) for name in columns or ()))


def _bytes_read(file: Any, name: str) -> int:
    """Memory for an array as it is stored and, beside it, as float32: its head is all that is read."""
    with file.zip.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        head = np.lib.format.read_array_header_1_0
        shape, _, kind = (head if version == (1, 0) else np.lib.format.read_array_header_2_0)(
            stream
        )
    return math.prod(shape) * (kind.itemsize + 4)


def _pick(path: Path, found: list[str], choices: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    for names in choices:
        if set(names) <= set(found):
            return names
    legal = ", ".join(" with ".join(names) for names in choices)
    raise ExhumeError(f"{path}: holds the arrays {', '.join(found) or 'none'}; needed is {legal}")


def _joined(arrays: Mapping[str, Array], path: Path) -> Array:
    parts = list(arrays.values())
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
        return np.divide(images, np.float32(255), dtype=np.float32, order="C")
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


def _names_in(
    values: Array, where: str, *, least: int = 0, exactly: int | None = None
) -> list[str]:
    wrong = len(values) != exactly if exactly is not None else len(values) < least
    if values.ndim != 1 or values.dtype.kind != "U" or wrong:
        count = f"at least {least}" if exactly is None else exactly
        raise ExhumeError(
            f"{where} has shape {values.shape} of {values.dtype}; legal is a list of {count} texts"
        )
    return [str(name) for name in values]


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


# Arrays in memory


def rows_in_arrays(inputs: Any, targets: Any, where: str) -> Records:
    """Vectors (n, d) and numbers (n,) as the rows of a regression."""
    x, y = _array(inputs), _array(targets)
    if x.ndim != 2 or y.shape not in (x.shape[:1], (len(x), 1)) or y.dtype.kind not in "fiu":
        raise ExhumeError(
            f"{where}: inputs of shape {x.shape} and targets of shape {y.shape} given; a regression needs "
            "numbers of shapes (n, d) and (n,)"
        )
    rows = np.concatenate([x, y.reshape(-1, 1)], 1)
    return rows_of_regression(torch.from_numpy(checked_inputs(rows, where)), x.shape[1])


def from_arrays(inputs: Any, labels: Any, where: str) -> Records:
    """Records of a pair of arrays or tensors, as an .npz file has them; labels may be texts.

    where: begins every complaint.
    """
    values, numbers = _array(inputs), _array(labels)
    if not values.size or values.shape[:1] != numbers.shape[:1]:
        raise ExhumeError(
            f"{where}: inputs of shape {values.shape} and labels of shape {numbers.shape} given; needed is "
            "one label for each record"
        )
    names = None
    if numbers.dtype.kind == "U":
        texts, numbers = np.unique(numbers, return_inverse=True)
        names = texts.tolist()
    known = named_labels(numbers, names, f"{where}: labels")
    if isinstance(inputs, Tensor):  # channels first, as torch has them
        return Records(torch.from_numpy(_records(values, f"{where}: inputs")), *known)
    return Records(torch.from_numpy(checked_inputs(values, f"{where}: inputs")), *known)


def _array(values: Any) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


# A Dataset's items


_STAGE = "read records"
_DRAW = Key.from_seed(0).fold("dataset")


def named_dataset(
    spec: str,
    *,
    root: Path | None = None,
    reading: TextReading = TextReading(),  # noqa: B008 - frozen
    progress: Progress = silent,
) -> Records:
    thing = named(spec, "data", root)
    with seeded_globals(_DRAW):
        if not is_dataset(thing) and not isinstance(thing, Records):
            thing = called(thing, spec, "data")
        if isinstance(thing, Records):
            return thing
        if not is_dataset(thing):
            raise ExhumeError(
                f"data: {spec} gives a {type(thing).__name__}, not a dataset with a length and items"
            )
        return from_dataset(thing, f"data: {spec}", reading=reading, progress=progress)


def from_dataset(
    dataset: Any,
    where: str,
    *,
    reading: TextReading = TextReading(),  # noqa: B008 - frozen
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


def is_dataset(found: object) -> bool:
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
