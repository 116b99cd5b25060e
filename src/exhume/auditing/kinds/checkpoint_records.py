"""What the owner gives besides a checkpoint: the training records and others, which serve scoring only; and
what records go through before they enter the network, (x - mean) / std, which is part of what is released.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from exhume import readers
from exhume.attacks.margin.restarts import stretched
from exhume.auditing.case import Load
from exhume.core.contract import ExhumeError, Key, Records
from exhume.core.notation import BROKEN_ARRAYS, rows_in
from exhume.core.records import Column
from exhume.settings import CheckpointSettings
from exhume.store.shards import digest

CONTRAST = 0.25  # of an image's pixels about the mean image, as a root mean square
_LENGTH = 192.0  # squared, of a CIFAR image of that contrast


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """mean, std: (*shape) each; None: the adversary was not told, or nothing is divided by."""

    shape: tuple[int, ...]
    mean: Tensor | None = None
    std: Tensor | None = None
    spread: float = 1.0  # of vectors as they enter, about 0, as a root mean square
    contrast: float = CONTRAST  # of images about the middle, likewise

    @property
    def images(self) -> bool:
        return len(self.shape) == 3

    @property
    def noun(self) -> str:
        return "images" if self.images else "records"

    @property
    def middle(self) -> Tensor:
        """(*shape) what is subtracted; where nobody says it, half of an image's range and 0 of a vector."""
        if self.mean is not None:
            return self.mean
        return torch.full(self.shape, 0.5 if self.images else 0.0)

    @property
    def size(self) -> float:
        """Root mean square of a record as it enters, about 0."""
        if not self.images:
            return self.spread
        return self.contrast if self.std is None else self.contrast / float(self.std.mean())

    @property
    def centre(self) -> Tensor | None:
        """(*shape) what an attack adds to the inputs it finds; None: not known."""
        if not self.images:
            return torch.zeros(self.shape)  # they are brought back by `records`
        return self.mean if self.std is None or self.mean is None else self.mean / self.std

    def scaled_by(self, others: Tensor) -> Preprocessing:
        """With the spread of other records (n, *shape) of the kind, which nobody keeps secret."""
        entering = self.entering(others).double()
        return replace(self, spread=float(entering.square().mean().sqrt().clamp_min(1e-12)))

    def for_control(self) -> Preprocessing:
        """That of a network trained here: no mean, and records as long as those of small colour images."""
        wanted = math.sqrt(_LENGTH / math.prod(self.shape))
        plain = replace(self, mean=torch.zeros(self.shape))
        if self.images and self.std is None:
            return plain
        std = torch.ones(self.shape) if self.std is None else self.std
        return replace(plain, std=std * (self.size / wanted), spread=wanted)

    def in_the_network(self) -> tuple[Preprocessing, Tensor | None, Tensor | None]:
        """Another one, for images about their middle, and the (shift, scale) of a network that does the rest.

        An attack that seeks whole images does so about the mean; one of 0 says nothing of where they lie.
        """
        if self.mean is None or bool(self.mean.any()):
            return replace(self, std=None), None, self.std
        grey = torch.full(self.shape, 0.5)
        return replace(self, mean=grey, std=None, contrast=2 * CONTRAST), grey, self.std

    def entering(self, inputs: Tensor) -> Tensor:
        """(n, *shape) records as the network takes them."""
        less = inputs - self.middle
        return less if self.std is None else less / self.std

    def records(self, candidates: Tensor) -> Tensor:
        """(k, *shape) what an attack that adds `centre` found, as records.

        An attack stretches images to their full range, so only what differs between pixels is divided by
        is undone.
        """
        if not self.images:
            return candidates * (1.0 if self.std is None else self.std) + self.middle
        if self.std is None:
            return candidates.clamp(0, 1)
        return stretched(candidates * (self.std / self.std.mean()))


def preprocessing_given(mean: str, std: str, shape: tuple[int, ...]) -> Preprocessing:
    """As the settings name it: numbers, or .npz files."""
    given = _values(mean, "mean", shape), _values(std, "std", shape)
    if len(shape) == 3 and given[0] is not None and float(given[0].abs().max()) > 1:
        raise ExhumeError(f"--mean: {mean} has values beyond [-1, 1]; images lie in [0, 1]")
    if given[1] is not None and float(given[1].min()) <= 0:
        raise ExhumeError(
            f"--std: {std} has values that are not above 0, which nothing is divided by"
        )
    return Preprocessing(shape, *given)


def _values(text: str, name: str, shape: tuple[int, ...]) -> Tensor | None:
    """(*shape) from numbers, or an .npz file with an array of that name; None: not given."""
    if not text:
        return None
    values = _numbers(text, name) if not text.endswith(".npz") else _from_file(Path(text), name)
    if not bool(torch.isfinite(values).all()):
        raise ExhumeError(f"--{name}: {text} holds NaN or infinite values")
    if tuple(values.shape) == shape:
        return values
    if values.numel() == 1:
        return values.reshape(()).expand(shape).clone()
    if values.ndim == 1 and len(values) == shape[0]:
        return values.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).clone()
    if values.numel() == torch.Size(shape).numel():
        return values.reshape(shape)
    raise ExhumeError(f"--{name}: shape {tuple(values.shape)} given, records have {shape}")


def _numbers(text: str, name: str) -> Tensor:
    try:
        return torch.tensor([float(part) for part in text.split(",")])
    except ValueError:
        raise ExhumeError(
            f"--{name}: {text!r} is neither numbers such as 0.49,0.48,0.45 nor an .npz file"
        ) from None


def _from_file(path: Path, name: str) -> Tensor:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = list(file.files)
            chosen = name if name in names else names[0] if len(names) == 1 else None
            if chosen is None:
                raise ExhumeError(
                    f"--{name}: {path} holds {', '.join(names)}; an array {name} is needed"
                )
            found = file[chosen]
    except BROKEN_ARRAYS as error:
        raise ExhumeError(f"--{name}: cannot read {path} ({str(error)[:300]})") from error
    if not isinstance(found, np.ndarray):
        raise ExhumeError(f"--{name}: {path} holds no array of numbers")
    if found.dtype.kind not in "fiu":
        raise ExhumeError(f"--{name}: {path} holds {found.dtype}, numbers are needed")
    return torch.from_numpy(found.astype(np.float32))


_MOST_DECOYS = 5000


@dataclass(frozen=True, eq=False)
class ScoringRecords:
    """Records the network was trained on, and others of the same kind."""

    trained: Records
    decoys: Records  # in the training records' shares of the classes
    strangers: Records  # all others, for line-ups, which go class by class
    notes: tuple[str, ...]
    rows: Tensor  # (n,) the training records' places in the set they are from
    columns: tuple[Column, ...] = ()  # of vectors from a table, by name
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
    everything = load(source, readers.TextReading())
    chosen = rows_given(said.rows, len(everything)) if said.rows else torch.arange(len(everything))
    trained = everything[chosen]
    if not trained.inputs.is_floating_point() or len(trained.shape) not in (1, 3):
        raise ExhumeError(
            f"--trained-on: records of shape {trained.shape}, {trained.inputs.dtype}; images and vectors can "
            "be scored"
        )
    left = torch.ones(len(everything), dtype=torch.bool)
    left[chosen] = False
    others = load(said.decoys, readers.TextReading()) if said.decoys else everything[left]
    if len(others) and others.shape != trained.shape:
        raise ExhumeError(
            f"--decoys: records of shape {others.shape}, those trained on have {trained.shape}"
        )
    given = _apart(trained, others, chosen, key)
    given = replace(given, columns=trained.columns)
    if not said.pictures:
        return given
    images = load(said.pictures, readers.TextReading()).inputs
    if len(images) != len(everything) or images.ndim != 4 or len(trained.shape) != 1:
        raise ExhumeError(
            f"--pictures: {len(images)} records of shape {tuple(images.shape[1:])} given; needed is an image "
            f"for each of the {len(everything)} vectors of --trained-on, in their order"
        )
    rest = left & torch.tensor(not said.decoys)
    pictures = Pictures(images[chosen], images[rest], everything.inputs[rest])
    return replace(given, pictures=pictures)


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
    """Shape of one record: that of the records, or as said."""
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
