"""Records: what is private, what is held, what attacks bring back. Images, vectors or token sequences.

Shapes: n records; s models with e records each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

TENTHS = 10  # ranges of a regression's target


@dataclass(frozen=True)
class Vocabulary:
    """What the numbers of token sequences stand for."""

    words: tuple[str, ...] = ()  # by number; empty: not known
    padding: int | None = None  # fills a sequence up; no token of the text
    given: bool = (
        True  # False: the words were numbered here, so that no trained model knows the numbers
    )


@dataclass(frozen=True)
class Column:
    """Where a column went: numbers from `low` to `high`, or one input a text."""

    name: str
    low: float = 0.0
    high: float = 1.0
    texts: tuple[str, ...] = ()
    filled: int = 0  # missing numbers that became the mean of the others

    @property
    def width(self) -> int:
        return len(self.texts) or 1

    def encode(self, cells: Sequence[str]) -> Tensor:
        """(n, width) float32."""
        if self.texts:
            place = {text: index for index, text in enumerate(self.texts)}
            rows = torch.tensor([place[cell] for cell in cells])
            return torch.nn.functional.one_hot(rows, self.width).float()
        numbers = torch.tensor([float(cell) for cell in cells], dtype=torch.float64)
        return ((numbers - self.low) / ((self.high - self.low) or 1.0)).float()[:, None]

    def decode(self, inputs: Tensor) -> str:
        """(width,) inputs as a cell; a text is the likeliest one."""
        if self.texts:
            return self.texts[int(inputs.argmax())]
        return f"{self.low + float(inputs[0]) * (self.high - self.low):.6g}"


def cells_of(inputs: Tensor, columns: Sequence[Column]) -> dict[str, str]:
    """(d,) inputs of a table, reconstructed ones too, as cells by the name of their column."""
    parts = torch.split(inputs, [column.width for column in columns])
    return {column.name: column.decode(part) for column, part in zip(columns, parts, strict=True)}


def filled_in(columns: Sequence[Column]) -> list[str]:
    """What was missing, in a sentence; nothing where nothing was."""
    gaps = [f"{column.filled:,} of {column.name}" for column in columns if column.filled]
    return [f"Missing numbers became the mean of their column: {', '.join(gaps)}."] if gaps else []


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records. Images are float in [0, 1], channels first; vectors are one-dimensional.

    Token sequences are int64 (n, l) and have a vocabulary; nothing else has one.
    `inputs` may carry two leading axes (s, e) where a record set is given per model.
    """

    inputs: Tensor  # (n, *shape) or (s, e, *shape)
    labels: Tensor  # (n,) or (s, e), int64 in [0, len(classes))
    classes: tuple[str, ...]
    vocabulary: Vocabulary | None = None
    columns: tuple[Column, ...] = ()  # of a table: how its inputs were made

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, index: slice | Tensor) -> Records:
        return replace(self, inputs=self.inputs[index], labels=self.labels[index])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.inputs.shape[self.labels.ndim :])

    def class_names(self) -> list[str]:
        """The class of every record, by its name."""
        return [self.classes[label] for label in self.labels.tolist()]

    def to(self, device: torch.device) -> Records:
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    @staticmethod
    def joined(sets: Sequence[Records]) -> Records:
        """The records of several sets of one kind, which are named and described as in the first."""
        inputs, labels = (
            torch.cat(parts) for parts in zip(*((s.inputs, s.labels) for s in sets), strict=True)
        )
        return replace(sets[0], inputs=inputs, labels=labels)

    def one_each(self, copies: int = 1) -> Records:
        """n sets of one record each, so many times: (n, *shape) becomes (n, copies, *shape)."""
        inputs, labels = self.inputs[:, None], self.labels[:, None]
        if copies > 1:
            inputs, labels = (t.repeat_interleave(copies, dim=1) for t in (inputs, labels))
        return Records(inputs, labels, self.classes)

    def with_extra(self, extra: Records, model: int) -> Records:
        """These and the extra records (s, e, *shape) of one model."""
        return Records(
            torch.cat([self.inputs, extra.inputs[model]]),
            torch.cat([self.labels, extra.labels[model]]),
            self.classes,
        )

    def none_for(self, models: int) -> Records:
        """An empty set for each of several models, of the same record shape."""
        return Records(
            self.inputs.new_zeros((models, 0, *self.shape)),
            self.labels.new_zeros((models, 0)),
            self.classes,
        )


def rows_of_regression(rows: Tensor, first: int, columns: Sequence[Column] = ()) -> Records:
    """Whole rows (n, d) as records: what a model sees, and from column `first` on its targets.

    A class is a tenth of the first target.
    """
    target = rows[:, first].clone()
    parts = torch.linspace(0, 1, TENTHS + 1, dtype=rows.dtype)
    cuts = torch.tensor(sorted(set(torch.quantile(target, parts).tolist())), dtype=rows.dtype)
    named = cuts.tolist()
    if columns:
        named = [float(columns[-1].decode(cut[None])) for cut in cuts]
    classes = tuple(f"{low:.6g} to {high:.6g}" for low, high in pairwise(named))
    labels = torch.bucketize(target, cuts[1:-1], right=True)
    return Records(rows, labels, classes or ("target",), columns=tuple(columns))


def total_variation(records: Tensor) -> Tensor:
    """(n,) mean absolute difference of neighbouring pixels, down plus across; 0 for what is no image."""
    if records.ndim != 4:
        return records.new_zeros(len(records))
    down, across = (records.diff(dim=axis).abs().flatten(1).mean(1) for axis in (2, 3))
    return down + across
