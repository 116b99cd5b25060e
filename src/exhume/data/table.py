"""A table in a .csv file as records: a header, one line a record, one column for the label.

The rule, column by column:
- a column of numbers becomes one input, brought to [0, 1] by its smallest and largest number
- any other column becomes one input for each text that occurs in it, 1 where it is that text and 0 else
- the label is the column named (`people.csv:income`), else the last one

`Table.rows` goes back from inputs to what a person can read.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from exhume.contract import ExhumeError, Records
from exhume.data.arrays import MOST_CLASSES

__all__ = ["Column", "Table", "table"]

_LARGEST = 1 << 29  # bytes; a table takes some ten times as much memory while it is read
_MOST_TEXTS = 64  # different texts in one column: beyond this it names its records


@dataclass(frozen=True)
class Column:
    """Where a column went: numbers from `low` to `high`, or one input a text."""

    name: str
    low: float = 0.0
    high: float = 1.0
    texts: tuple[str, ...] = ()

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


@dataclass(frozen=True, eq=False)
class Table:
    records: Records  # (n, d)
    columns: tuple[Column, ...]  # in the order of the inputs
    label: str

    def rows(self, inputs: Tensor) -> list[dict[str, str]]:
        """(n, d) inputs, reconstructed ones too, as cells by column."""
        widths = [column.width for column in self.columns]
        return [
            {
                c.name: c.decode(part)
                for c, part in zip(self.columns, row.split(widths), strict=True)
            }
            for row in inputs
        ]


def table(path: Path, label: str | None = None) -> Table:
    """The records of a file, and how they were made."""
    header, lines = _cells(path)
    if label is not None and label not in header:
        raise ExhumeError(f"{path}: no column {label!r}; there are {', '.join(header)}")
    chosen = header[-1] if label is None else label
    by_name = dict(zip(header, zip(*lines, strict=True), strict=True))
    numbers, classes = _labels(by_name.pop(chosen), f"{path}: label column {chosen!r}")
    columns = tuple(_column(name, cells, str(path)) for name, cells in by_name.items())
    if not columns:
        raise ExhumeError(
            f"{path}: the one column {chosen!r} is the label; nothing is left as input"
        )
    encoded = [column.encode(by_name[column.name]) for column in columns]
    return Table(Records(torch.cat(encoded, 1), numbers, classes), columns, chosen)


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    size = path.stat().st_size
    if size > _LARGEST:
        raise ExhumeError(f"{path}: {size:,} bytes, tables up to {_LARGEST:,} are read")
    try:
        text = path.read_bytes().decode("utf-8-sig")
        first = text.split("\n", 1)[0]
        mark = max(",;\t", key=first.count)
        lines = [
            line for line in csv.reader(io.StringIO(text), delimiter=mark, strict=True) if line
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ExhumeError(f"{path}: not a table in UTF-8 ({error})") from error
    if len(lines) < 2:
        raise ExhumeError(f"{path}: a line of column names and one line a record are needed")
    header = [name.strip() for name in lines[0]]
    if all(_number(name) is not None for name in header):
        raise ExhumeError(f"{path}: the first line holds numbers; it must name the columns")
    if len(set(header)) < len(header) or "" in header:
        raise ExhumeError(f"{path}: column names must be there and differ, got {', '.join(header)}")
    for index, line in enumerate(lines[1:], 1):
        if len(line) != len(header):
            raise ExhumeError(
                f"{path}: record {index} has {len(line)} cells, the header has {len(header)}"
            )
    return header, [[cell.strip() for cell in line] for line in lines[1:]]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _column(name: str, cells: Sequence[str], where: str) -> Column:
    numbers = [_number(cell) for cell in cells]
    if all(number is None for number in numbers):
        texts = tuple(sorted(set(cells)))
        if len(texts) > _MOST_TEXTS:
            raise ExhumeError(
                f"{where}: column {name!r} holds {len(texts)} different texts, {_MOST_TEXTS} are the most; "
                "leave it out, or group them"
            )
        return Column(name, texts=texts)
    for index, (cell, number) in enumerate(zip(cells, numbers, strict=True), 1):
        if number is None or not math.isfinite(number):
            raise ExhumeError(
                f"{where}: column {name!r} is of numbers, but record {index} has {cell!r}; fill it in, "
                "or leave the record out"
            )
    real = [number for number in numbers if number is not None]
    return Column(name, min(real), max(real))


def _labels(cells: Sequence[str], where: str) -> tuple[Tensor, tuple[str, ...]]:
    """Classes are the texts that occur, in the order of numbers where they are such."""
    if "" in cells:
        raise ExhumeError(f"{where}: record {cells.index('') + 1} has none")
    numbers = {cell: _number(cell) for cell in set(cells)}
    values = [number for number in numbers.values() if number is not None]
    if len(values) == len(numbers):
        odd = [value for value in values if not math.isfinite(value) or value % 1]
        if odd:
            raise ExhumeError(f"{where}: {odd[0]:g} is no class; whole numbers or texts are needed")
        classes = sorted(numbers, key=lambda cell: (float(cell), cell))
    else:
        classes = sorted(numbers)
    if len(classes) >= min(MOST_CLASSES, max(3, len(cells))):
        raise ExhumeError(f"{where}: every record has a class of its own; name another column")
    place = {name: index for index, name in enumerate(classes)}
    return torch.tensor([place[cell] for cell in cells]), tuple(classes)
