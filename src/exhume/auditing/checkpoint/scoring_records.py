"""What the owner gives besides a checkpoint: the training records, and others. They serve scoring only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume import readers
from exhume.auditing.release import Load
from exhume.core.contract import ExhumeError, Key, Records
from exhume.core.notation import rows_in
from exhume.settings import CheckpointSettings
from exhume.store.shards import digest

__all__ = ["Pictures", "ScoringRecords", "records_given", "rows_given", "shape_of"]

_MOST_DECOYS = 5000


@dataclass(frozen=True, eq=False)
class ScoringRecords:
    """Records the network was trained on, and others of the same kind."""

    trained: Records
    decoys: Records  # in the training records' shares of the classes
    strangers: Records  # all others, for line-ups, which go class by class
    notes: tuple[str, ...]
    rows: Tensor  # (n,) the training records' places in the set they are from
    columns: tuple[readers.Column, ...] = ()  # of vectors from a table, by name
    pictures: Pictures | None = None  # behind vectors

    def numbered(self, outputs: int) -> ScoringRecords:
        """With classes that are called by numbers at the network's outputs of these numbers.

        A set tells its classes by the labels that occur, and a few records need not have all.
        """
        return replace(
            self,
            trained=_numbered(self.trained, outputs),
            decoys=_numbered(self.decoys, outputs),
            strangers=_numbered(self.strangers, outputs),
        )


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images behind vectors, for the page only."""

    trained: Tensor  # (n, c, h, w)
    others: Tensor  # (m, c, h, w), none where the others are a set of their own
    vectors: Tensor  # (m, d) theirs


def records_given(said: CheckpointSettings, key: Key, *, load: Load) -> ScoringRecords:
    """Load both; decoys are a set of their own, or what `rows` leaves of the training set."""
    source = said.trained_on or ""
    if not (said.rows or said.decoys):
        raise ExhumeError(
            "--trained-on: give --decoys too, or --rows if part of it was not trained on; without "
            "records that were not trained on there is nothing to compare with"
        )
    everything = load(source, readers.Reading())
    chosen = rows_given(said.rows, len(everything)) if said.rows else torch.arange(len(everything))
    trained = everything[chosen]
    if not trained.inputs.is_floating_point() or len(trained.shape) not in (1, 3):
        raise ExhumeError(
            f"--trained-on: records of shape {trained.shape}, {trained.inputs.dtype}; images and vectors can "
            "be scored"
        )
    left = torch.ones(len(everything), dtype=torch.bool)
    left[chosen] = False
    others = load(said.decoys, readers.Reading()) if said.decoys else everything[left]
    if len(others) and others.shape != trained.shape:
        raise ExhumeError(
            f"--decoys: records of shape {others.shape}, those trained on have {trained.shape}"
        )
    given = _apart(trained, others, chosen, key)
    given = replace(given, columns=trained.columns or _columns(source, trained.shape))
    if not said.pictures:
        return given
    images = load(said.pictures, readers.Reading()).inputs
    if len(images) != len(everything) or images.ndim != 4 or len(trained.shape) != 1:
        raise ExhumeError(
            f"--pictures: {len(images)} records of shape {tuple(images.shape[1:])} given; needed is an image "
            f"for each of the {len(everything)} vectors of --trained-on, in their order"
        )
    rest = left & torch.tensor(not said.decoys)
    pictures = Pictures(images[chosen], images[rest], everything.inputs[rest])
    return replace(given, pictures=pictures)


def _columns(source: str, shape: tuple[int, ...]) -> tuple[readers.Column, ...]:
    """Names of the columns of vectors, where the set has them."""
    return readers.columns_of(source) if len(shape) == 1 else ()


def _numbered(records: Records, outputs: int) -> Records:
    if not all(name.isdigit() and int(name) < outputs for name in records.classes):
        return records
    number = torch.tensor([int(name) for name in records.classes])
    classes = tuple(str(place) for place in range(outputs))
    return Records(records.inputs, number[records.labels], classes)


def _apart(trained: Records, others: Records, rows: Tensor, key: Key) -> ScoringRecords:
    """Others without copies of training records; decoys in the training records' shares of the classes."""
    notes = []
    known = {digest(one) for one in trained.inputs}
    fresh = torch.tensor([digest(one) not in known for one in others.inputs], dtype=torch.bool)
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
        return ScoringRecords(trained, others[:_MOST_DECOYS], others, tuple(notes), rows)
    if missing:
        notes.append(
            f"There are no decoys of {', '.join(missing)}; the null is of the other classes."
        )
    chosen = _in_proportion(there, {n: c for n, c in wanted.items() if n not in missing})
    return ScoringRecords(trained, others[torch.tensor(chosen)], others, tuple(notes), rows)


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
