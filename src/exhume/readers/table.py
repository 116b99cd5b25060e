"""A table in a .csv file as records: a header, one line a record, one column for the label.

The rule, column by column:
- a column of numbers becomes one input, brought to [0, 1] by its smallest and largest number
- any other column becomes one input for each text that occurs in it, 1 where it is that text and 0 else
- the label is the column named (`people.csv:income`), else the last one; of a regression its numbers become
  the last input
- a missing number (an empty cell, NA, nan, null, None, ?) is refused by its row, or becomes the mean of its
  column where that is asked for; among texts "not known" is a text like others

Rows are counted as in the file: the header is row 1.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Records
from exhume.core.records import Column, rows_of_regression
from exhume.readers.arrays import MOST_CLASSES
from exhume.store.memory import check_memory

_LARGEST = 1 << 29  # bytes; what a table takes in memory is its inputs, which are counted first
_LONGEST = 1 << 22  # characters of a line
_CELLS = 1 << 17  # read at a time
_MOST_TEXTS = 64  # different texts in one column: beyond this it names its records
_MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))  # whatever their case
_ROWS_NAMED = 5  # of a column with missing numbers

_Line = tuple[int, list[str]]
"""The row that it is in the file, and its cells."""


def table(
    path: Path, label: str | None = None, *, missing: str = "", targets: bool = False
) -> Records:
    """The records of a file, with how their columns were made.

    missing: what missing numbers become: `mean`, that of their column; else they are refused. targets: the
    label is what a regression predicts.
    The file is read twice, a block of lines at a time: once for what its columns hold, once for the inputs.
    """
    with _lines_of(path) as lines:
        header = _header(next(lines, (1, []))[1], path)
        if label is not None and label not in header:
            raise ExhumeError(f"{path}: no column {label!r}; there are {', '.join(header)[:300]}")
        chosen = header[-1] if label is None else label
        kinds = {name: _Cells(name, str(path)) for name in header if name != chosen}
        labels, count = _Labels(f"{path}: label column {chosen!r}"), 0
        if targets:
            kinds[chosen] = _Cells(chosen, str(path))
        for rows, block in _blocks(lines, header, path):
            count += len(rows)
            if not targets:
                labels.take(block.pop(chosen), rows)
            for name, cells in block.items():
                kinds[name].take(cells, rows)
    columns = tuple(kind.column() for kind in kinds.values())
    if targets and columns[-1].texts:
        raise ExhumeError(f"{path}: column {chosen!r} holds texts; mse predicts numbers")
    gaps = [kind for kind in kinds.values() if kind.gaps]
    if gaps and missing != "mean":
        raise _gaps_refused(gaps, path)
    if len(columns) <= targets:
        raise ExhumeError(
            f"{path}: the one column {chosen!r} is the label; nothing is left as input"
        )
    width = sum(column.width for column in columns)
    check_memory(8 * count * width, f"{path}: {count:,} records of {width:,} inputs")
    inputs = torch.empty(count, width)
    done = 0
    with _lines_of(path) as lines:
        next(lines)
        for _, block in _blocks(lines, header, path):
            try:
                encoded = [
                    column.encode(kinds[column.name].filled_in(block[column.name]))
                    for column in columns
                ]
                encoded_rows = torch.cat(encoded, 1)
                inputs[done : done + len(encoded_rows)] = encoded_rows
            except (LookupError, ValueError, RuntimeError):
                raise ExhumeError(f"{path}: was changed while it was read") from None
            done += len(encoded_rows)
    if targets:
        return rows_of_regression(inputs, width - 1, columns)
    numbers, classes = labels.found()
    return Records(inputs, numbers, classes, columns=columns)


@contextmanager
def _lines_of(path: Path) -> Iterator[Iterator[_Line]]:
    """The lines of a file that are not empty, with their rows."""
    size = path.stat().st_size
    if size > _LARGEST:
        raise ExhumeError(f"{path}: {size:,} bytes, tables up to {_LARGEST:,} are read")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline(_LONGEST)
            mark = max(",;\t", key=first.count)
            file.seek(0)
            reader = csv.reader(_short_lines(file, path), delimiter=mark, strict=True)
            yield ((reader.line_num, line) for line in reader if line)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ExhumeError(f"{path}: not a table in UTF-8 ({error})") from error


def _short_lines(file: TextIO, path: Path) -> Iterator[str]:
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise ExhumeError(f"{path}: a line of more than {_LONGEST:,} characters")
        yield line


def _header(line: list[str], path: Path) -> list[str]:
    header = [name.strip() for name in line]
    if not header:
        raise ExhumeError(f"{path}: a line of column names and one line a record are needed")
    if all(_number(name) is not None for name in header):
        raise ExhumeError(f"{path}: the first line holds numbers; it must name the columns")
    if len(set(header)) < len(header) or "" in header:
        raise ExhumeError(
            f"{path}: column names must be there and differ, got {', '.join(header)[:300]}"
        )
    return header


def _blocks(
    lines: Iterator[_Line], header: list[str], path: Path
) -> Iterator[tuple[tuple[int, ...], dict[str, tuple[str, ...]]]]:
    """Rows and cells by column, a few thousand records at a time."""
    done = 0
    many = max(1, _CELLS // max(1, len(header)))
    while block := list(islice(lines, many)):
        for row, cells in block:
            if len(cells) != len(header):
                raise ExhumeError(
                    f"{path}: row {row} has {len(cells)} cells, the header has {len(header)}"
                )
        done += len(block)
        rows = tuple(row for row, _ in block)
        by_column = zip(*(cells for _, cells in block), strict=True)
        stripped = (tuple(map(str.strip, cells)) for cells in by_column)
        yield rows, dict(zip(header, stripped, strict=True))
    if not done:
        raise ExhumeError(f"{path}: a line of column names and one line a record are needed")


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _gaps_refused(columns: Sequence[_Cells], path: Path) -> ExhumeError:
    """What is missing where, and what can be done."""
    count = sum(column.gaps for column in columns)
    numbers = "1 number is" if count == 1 else f"{count:,} numbers are"
    places = ", ".join(f"{column.name!r} ({column.gap_rows()})" for column in columns)
    return ExhumeError(
        f"{path}: {numbers} missing: in column {places[:500]}; leave these rows out, fill them in, or "
        'ask for the mean of their columns: --missing mean, or missing = "mean" in [data]'
    )


class _Cells:
    """What the cells of a column are, as they come by: numbers between two ends, or a few texts."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        self.low, self.high = math.inf, -math.inf
        self.total, self.numbers = 0.0, 0
        self.texts: dict[str, int] = {}  # and the row where each came first
        self.absent: dict[str, int] = {}  # as texts: how a missing cell is written
        self.missing_rows = array("q")

    def take(self, cells: Sequence[str], rows: Sequence[int]) -> None:
        if not (self._all_numbers(cells) or self.texts.keys() >= set(cells)):
            for cell, row in zip(cells, rows, strict=True):
                self._take(cell, row)

    def _all_numbers(self, cells: Sequence[str]) -> bool:
        try:
            numbers = [] if self.texts else [float(cell) for cell in cells]
        except ValueError:
            return False
        if not numbers or not all(map(math.isfinite, numbers)):
            return False
        self.low, self.high = min(self.low, *numbers), max(self.high, *numbers)
        self.total, self.numbers = self.total + math.fsum(numbers), self.numbers + len(numbers)
        return True

    def _take(self, cell: str, row: int) -> None:
        number = _number(cell)
        if cell.lower() in _MISSING:
            self.absent.setdefault(cell, row)
            self.missing_rows.append(row)
        elif number is None and not self.numbers:
            self._add_text(cell, row)
        elif self.texts:  # numbers after all, so that the first text is the odd one
            self._refuse(*next(iter(self.texts.items())))
        elif number is None or not math.isfinite(number):
            self._refuse(cell, row)
        else:
            self._all_numbers([cell])

    @property
    def gaps(self) -> int:
        """Missing numbers; among texts none is missing."""
        return len(self.missing_rows) if self.numbers else 0

    def gap_rows(self) -> str:
        named = ", ".join(map(str, self.missing_rows[:_ROWS_NAMED]))
        more = self.gaps - _ROWS_NAMED
        return f"{'row' if self.gaps == 1 else 'rows'} {named}{f' and {more:,} more' if more > 0 else ''}"

    def filled_in(self, cells: Sequence[str]) -> Sequence[str]:
        if not self.gaps:
            return cells
        mean = repr(self.total / self.numbers)
        return [mean if cell.lower() in _MISSING else cell for cell in cells]

    def column(self) -> Column:
        if not self.numbers:
            return Column(self.name, texts=tuple(sorted({*self.texts, *self.absent})))
        if not math.isfinite(self.high - self.low):
            raise ExhumeError(
                f"{self.where}: column {self.name!r} goes from {self.low:g} to {self.high:g}, too far apart"
            )
        return Column(self.name, self.low, self.high, filled=self.gaps)

    def _add_text(self, cell: str, row: int) -> None:
        self.texts.setdefault(cell, row)
        if len(self.texts) > _MOST_TEXTS:
            raise ExhumeError(
                f"{self.where}: column {self.name!r} holds more than {_MOST_TEXTS} different texts, the "
                f"{_MOST_TEXTS + 1}th in row {row}; leave it out, or group them"
            )

    def _refuse(self, cell: str, row: int) -> None:
        number = _number(cell)
        what = f"the text {cell[:80]!r}" if number is None else f"{cell[:80]!r}"
        raise ExhumeError(
            f"{self.where}: column {self.name!r} is of numbers, but row {row} has {what}; fill it in, or "
            "leave the row out"
        )


class _Labels:
    """Classes are the texts that occur, in the order of numbers where they are such."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.places: dict[str, int] = {}  # in the order of their first record
        self.rows = array("q")

    def take(self, cells: Sequence[str], rows: Sequence[int]) -> None:
        if self.places.keys() >= set(cells):
            self.rows.extend(self.places[cell] for cell in cells)
            return
        for cell, row in zip(cells, rows, strict=True):
            if not cell:
                raise ExhumeError(f"{self.where}: row {row} has none")
            self.rows.append(self.places.setdefault(cell, len(self.places)))
            if len(self.places) >= MOST_CLASSES:
                self._refuse_names()

    def found(self) -> tuple[Tensor, tuple[str, ...]]:
        numbers = [number for cell in self.places if (number := _number(cell)) is not None]
        classes = sorted(self.places)
        if len(numbers) == len(classes):
            odd = [value for value in numbers if not math.isfinite(value) or value % 1]
            if odd:
                raise ExhumeError(
                    f"{self.where}: {odd[0]:g} is no class; whole numbers or texts are needed"
                )
            classes = sorted(classes, key=float)
        if len(classes) >= max(3, len(self.rows)):
            self._refuse_names()
        order = torch.empty(len(classes), dtype=torch.int64)
        for index, name in enumerate(classes):
            order[self.places[name]] = index
        return order[torch.tensor(self.rows)], tuple(classes)

    def _refuse_names(self) -> None:
        raise ExhumeError(f"{self.where}: every record has a class of its own; name another column")
