"""A Hugging Face `datasets` folder on disk, as `save_to_disk` writes it; read by pyarrow alone.

The label is the column of class labels, or one called label, labels or y. The input is the column of
images, else one called image, pixel_values, input_ids, features or x; else one of texts, called text or
sentence; else all columns of single numbers together. input_ids are tokens, and so are texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch

from exhume.core.contract import ExhumeError, Progress, Records, silent
from exhume.core.errors import optional
from exhume.core.files import object_at
from exhume.readers.arrays import Array, checked_inputs, named_labels
from exhume.readers.images import Blob, stack
from exhume.readers.tokens import TextReading, tokenised, tokens_of
from exhume.store.memory import check_memory

_LABELS = ("label", "labels", "y")
_INPUTS = ("image", "pixel_values", "input_ids", "features", "x")
_TEXTS = ("text", "sentence")


def is_hub_folder(path: Path) -> bool:
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def hub_folder(
    path: Path,
    *,
    split: str | None = None,
    size: int | None = None,
    reading: TextReading = TextReading(),  # noqa: B008 - frozen
    progress: Progress = silent,
) -> Records:
    """Records of a saved dataset, or of one split of several: `train` if none is named."""
    part = _split(path, split)
    state, about = object_at(part / "state.json"), object_at(part / "dataset_info.json")
    features = _features(about, part)
    label, given = _columns(features, part)
    table = _table(part, state, [label, *given])
    names = features[label].get("names") if features[label].get("_type") == "ClassLabel" else None
    if names is not None and not _texts(names):
        raise ExhumeError(f"{part}: {label}: the names of its classes are not a list of texts")
    labels, classes = named_labels(
        _numbers(table[label].to_pylist(), f"{part}: {label}"), names, f"{part}: {label}"
    )
    if features[given[0]].get("_type") == "Image":
        blobs = [_blob(cell, index, part) for index, cell in enumerate(table[given[0]].to_pylist())]
        pixels = stack(blobs, size=size, progress=progress)
        return Records(pixels.to(torch.float32).div_(255), labels, classes)
    if size is not None:
        raise ExhumeError(f"size: {size} given, but {part} holds no images")
    progress("read records", 0, 1)
    if given[0] in ("input_ids", *_TEXTS):
        make = tokens_of if given[0] == "input_ids" else tokenised
        cells = _present(table[given[0]].to_pylist(), f"{part}: {given[0]}")
        tokens, vocabulary = make(cells, reading, f"{part}: {given[0]}")
        progress("read records", 1, 1)
        return Records(tokens, labels, classes, vocabulary)
    columns = [_numbers(table[name].to_pylist(), f"{part}: {name}") for name in given]
    values = columns[0] if columns[0].ndim > 1 else np.stack(columns, 1)
    progress("read records", 1, 1)
    return Records(
        torch.from_numpy(checked_inputs(values, f"{part}: {', '.join(given)}")), labels, classes
    )


def _split(path: Path, split: str | None) -> Path:
    if not (path / "dataset_dict.json").is_file():
        if split is not None:
            raise ExhumeError(f"{path}: holds no splits, {split!r} was asked for")
        return path
    splits = object_at(path / "dataset_dict.json").get("splits")
    if not _texts(splits):
        raise ExhumeError(f"{path / 'dataset_dict.json'}: missing or damaged (it names no splits)")
    strange = [name for name in splits if not _is_name(name)]
    if strange:
        raise ExhumeError(
            f"{path / 'dataset_dict.json'}: {strange[0][:80]!r} is no name of a split, which is a folder "
            "beside this file"
        )
    chosen = split or (splits[0] if len(splits) == 1 else "train")
    if chosen not in splits:
        raise ExhumeError(
            f"{path}: no split {chosen!r}; there are {', '.join(splits)}, "
            f"name one as {path.name}:SPLIT"
        )
    return path / chosen


def _is_name(name: str) -> bool:
    """Whether it names something in this very folder, on any system."""
    return name not in ("", ".", "..") and not set("/\\\0") & set(name) and len(name) < 256


def _texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _features(about: Mapping[str, Any], where: Path) -> dict[str, dict[str, Any]]:
    features = about.get("features")
    if not isinstance(features, dict) or not all(isinstance(f, dict) for f in features.values()):
        raise ExhumeError(
            f"{where / 'dataset_info.json'}: missing or damaged (it names no columns)"
        )
    return features


def _columns(features: Mapping[str, dict[str, Any]], where: Path) -> tuple[str, list[str]]:
    """The label's column, and that or those of the input."""
    kinds = {name: feature.get("_type") for name, feature in features.items()}
    labels = [n for n, kind in kinds.items() if kind == "ClassLabel"]
    labels = labels or [name for name in _LABELS if name in features]
    if not labels:
        raise ExhumeError(
            f"{where}: no column of labels among {', '.join(features) or 'none'}; legal are class labels, "
            f"{', '.join(_LABELS)}"
        )
    images = [name for name, kind in kinds.items() if kind == "Image" and name != labels[0]]
    single = images or [name for name in _INPUTS if name in features and name != labels[0]]
    single = single or [n for n in _TEXTS if features.get(n, {}).get("dtype") == "string"]
    if single:
        return labels[0], single[:1]
    numbers = [
        name
        for name, kind in kinds.items()
        if name != labels[0]
        and kind == "Value"
        and str(features[name].get("dtype")).startswith(("int", "uint", "float", "bool"))
    ]
    if not numbers:
        raise ExhumeError(
            f"{where}: no column of images, numbers or tokens among {', '.join(features)}; "
            "texts are called text or sentence, token numbers input_ids"
        )
    return labels[0], numbers


def _table(part: Path, state: Mapping[str, Any], names: list[str]) -> Any:
    arrow = _pyarrow()
    listed = state.get("_data_files")
    entries = listed if isinstance(listed, list) else []
    names_given = [entry.get("filename") for entry in entries if isinstance(entry, dict)]
    whole = [name for name in names_given if isinstance(name, str) and _is_name(name)]
    files = [part / name for name in whole]
    if (
        not files
        or len(files) < len(entries)
        or any(file.resolve().parent != part.resolve() for file in files)
    ):
        raise ExhumeError(f"{part}: its state.json names no data file in this folder")
    pieces = [_piece(file, names) for file in files]
    if any(piece.schema != pieces[0].schema for piece in pieces):
        raise ExhumeError(f"{part}: its files hold columns of different types")
    table = arrow.concat_tables(pieces)
    if not table.num_rows:
        raise ExhumeError(f"{part}: holds no records")
    kinds = arrow.types
    needed = 0
    for column in table.columns:  # as Python's values, numbers take up to sixteen times as much
        whole = kinds.is_struct(column.type) or kinds.is_string(column.type)
        needed += (3 if whole else 16) * column.nbytes
    check_memory(needed, f"{part}: {table.num_rows:,} records")
    return table


def _piece(file: Path, names: list[str]) -> Any:
    """The columns of one file. What it promises is checked before anything is believed."""
    arrow = _pyarrow()
    try:
        room = 8 * file.stat().st_size  # a record of a bit at least
        with arrow.memory_map(str(file)) as source, arrow.ipc.open_stream(source) as stream:
            batches, rows = [], 0
            for batch in stream:
                rows += batch.num_rows
                if rows > room:
                    raise ExhumeError(f"{file}: promises {rows:,} records in {room // 8:,} bytes")
                batches.append(batch)
            piece = arrow.Table.from_batches(batches, stream.schema).select(names)
            piece.validate(full=True)
            return piece
    except (arrow.ArrowException, OSError, KeyError, ValueError, MemoryError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ExhumeError(f"{file}: missing, truncated or damaged ({first[:300]})") from error


def _pyarrow() -> Any:
    return optional("pyarrow", "hf", "a Hugging Face datasets folder")


def _numbers(cells: list[Any], where: str) -> Array:
    """(n,) or (n, ...) numbers; sequences must be equally long."""
    _present(cells, where)
    try:
        return np.asarray(cells, dtype=None if not isinstance(cells[0], str) else np.str_)
    except ValueError:
        sizes = [len(cell) for cell in cells]
        odd = next((i for i, size in enumerate(sizes) if size != sizes[0]), 0)
        raise ExhumeError(
            f"{where}: record {odd} has {sizes[odd]} numbers, record 0 has {sizes[0]}; bring all to one size"
        ) from None


def _present(cells: list[Any], where: str) -> list[Any]:
    if any(cell is None for cell in cells):
        raise ExhumeError(f"{where}: record {cells.index(None)} is missing")
    return cells


def _blob(cell: Any, index: int, where: Path) -> Blob:
    data = cell.get("bytes") if isinstance(cell, dict) else None
    if not data:
        raise ExhumeError(
            f"{where}: image {index} is kept outside the folder; save the dataset with its images inside"
        )
    return Blob(f"{where}: image {index}", data)
