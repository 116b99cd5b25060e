"""What the owner gives besides a checkpoint: the mean that inputs lose, the training records, decoys.

The mean is part of the released preprocessing. The records serve scoring only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from exhume import data
from exhume.auditing.release import Load
from exhume.contract import ExhumeError, Key, Records
from exhume.notation import BROKEN_ARRAYS, rows_in
from exhume.settings import CheckpointSettings
from exhume.store import digest

__all__ = ["ScoringRecords", "mean_given", "records_given", "rows_given", "shape_of"]

_MOST_DECOYS = 5000


@dataclass(frozen=True, eq=False)
class ScoringRecords:
    """Records the network was trained on, and others of the same kind."""

    trained: Records
    decoys: Records
    notes: tuple[str, ...]
    rows: Tensor  # (n,) the training records' places in the set they are from


def records_given(
    trained_on: str, rows: str, decoys: str, key: Key, *, load: Load
) -> ScoringRecords:
    """Load both; decoys are a set of their own, or what `rows` leaves of the training set."""
    if not (rows or decoys):
        raise ExhumeError(
            "--trained-on: give --decoys too, or --rows if part of it was not trained on; without "
            "records that were not trained on there is nothing to compare with"
        )
    everything = load(trained_on, data.Reading())
    chosen = rows_given(rows, len(everything)) if rows else torch.arange(len(everything))
    trained = everything[chosen]
    if len(trained.shape) != 3:
        raise ExhumeError(
            f"--trained-on: records of shape {trained.shape}; only images can be scored so far"
        )
    if decoys:
        others = load(decoys, data.Reading())
    else:
        left = torch.ones(len(everything), dtype=torch.bool)
        left[chosen] = False
        others = everything[left]
    if len(others) and others.shape != trained.shape:
        raise ExhumeError(
            f"--decoys: records of shape {others.shape}, those trained on have {trained.shape}"
        )
    return _apart(trained, others, chosen, key)


def _apart(trained: Records, others: Records, rows: Tensor, key: Key) -> ScoringRecords:
    """Decoys without copies of training records, in the training records' shares of the classes."""
    notes = []
    known = {digest(image) for image in trained.inputs}
    fresh = torch.tensor([digest(image) not in known for image in others.inputs], dtype=torch.bool)
    if copies := int((~fresh).sum()):
        notes.append(f"{copies} decoys are copies of training records and were left out.")
    others = others[fresh]
    if not len(others):
        raise ExhumeError("--decoys: no record is left that was not trained on")
    order = torch.randperm(len(others), generator=key.fold("decoys").generator())
    others = others[order]
    wanted = Counter(trained.classes[label] for label in trained.labels.tolist())
    there = [others.classes[label] for label in others.labels.tolist()]
    missing = sorted(set(wanted) - set(there))
    if len(missing) == len(wanted):
        notes.append("No decoy has a class of the training records; all were used.")
        return ScoringRecords(trained, others[:_MOST_DECOYS], tuple(notes), rows)
    if missing:
        notes.append(
            f"There are no decoys of {', '.join(missing)}; the null is of the other classes."
        )
    chosen = _in_proportion(there, {n: c for n, c in wanted.items() if n not in missing})
    return ScoringRecords(trained, others[torch.tensor(chosen)], tuple(notes), rows)


def _in_proportion(there: list[str], wanted: Mapping[str, int]) -> list[int]:
    """As many rows as possible, at most `_MOST_DECOYS`, each class in its share."""
    held = Counter(there)
    times = min(held[name] / count for name, count in wanted.items())
    times = min(times, _MOST_DECOYS / sum(wanted.values()))
    room = {name: max(1, int(times * count)) for name, count in wanted.items()}
    chosen = []
    for row, name in enumerate(there):
        if room.get(name, 0):
            room[name] -= 1
            chosen.append(row)
    return chosen


def rows_given(text: str, count: int) -> Tensor:
    """Row numbers as `rows_in` reads them, sorted, each once."""
    rows = sorted(set(rows_in(text, "--rows")))
    if not rows or rows[0] < 0 or rows[-1] >= count:
        raise ExhumeError(f"--rows: {text} does not lie within the {count} records given")
    return torch.tensor(rows)


def shape_of(settings: CheckpointSettings, given: ScoringRecords | None) -> tuple[int, ...]:
    """Of one record: that of the records, or as said."""
    if given is not None:
        shape = given.trained.shape
        if settings.shape and settings.shape != shape:
            raise ExhumeError(f"--shape: {settings.shape} given, the training records have {shape}")
        return shape
    if not settings.shape:
        raise ExhumeError(
            "--shape: the shape of one record is needed, such as 3,32,32; the checkpoint only tells how "
            "many numbers it takes"
        )
    return settings.shape


def mean_given(text: str, shape: tuple[int, ...]) -> Tensor | None:
    """(*shape) what inputs lose before they enter: numbers, or an .npz file with `mean`; None: not given."""
    if not text:
        return None
    values = _numbers(text) if not text.endswith(".npz") else _from_file(Path(text))
    if not bool(torch.isfinite(values).all()) or float(values.abs().max()) > 1:
        raise ExhumeError(f"--mean: {text} has values beyond [-1, 1]; records lie in [0, 1]")
    if tuple(values.shape) == shape:
        return values
    if values.numel() == 1:
        return values.reshape(()).expand(shape).clone()
    if values.ndim == 1 and len(values) == shape[0]:
        return values.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).clone()
    if values.numel() == torch.Size(shape).numel():
        return values.reshape(shape)
    raise ExhumeError(f"--mean: shape {tuple(values.shape)} given, records have {shape}")


def _numbers(text: str) -> Tensor:
    try:
        return torch.tensor([float(part) for part in text.split(",")])
    except ValueError:
        raise ExhumeError(
            f"--mean: {text!r} is neither numbers such as 0.49,0.48,0.45 nor an .npz file"
        ) from None


def _from_file(path: Path) -> Tensor:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = list(file.files)
            name = "mean" if "mean" in names else names[0] if len(names) == 1 else None
            if name is None:
                raise ExhumeError(
                    f"--mean: {path} holds {', '.join(names)}; an array mean is needed"
                )
            found = file[name]
    except BROKEN_ARRAYS as error:
        raise ExhumeError(f"--mean: cannot read {path} ({str(error)[:300]})") from error
    if not isinstance(found, np.ndarray):
        raise ExhumeError(f"--mean: {path} holds no array of numbers")
    if found.dtype.kind not in "fiu":
        raise ExhumeError(f"--mean: {path} holds {found.dtype}, numbers are needed")
    return torch.from_numpy(found.astype(np.float32))
