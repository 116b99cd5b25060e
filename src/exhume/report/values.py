"""Records of a table, value by value: private, brought back, and the nearest that was not trained on.

Made for the full page only; never for the redacted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from exhume.contract import Shard
from exhume.data.table import Column
from exhume.report.gallery import RANKED

__all__ = ["COLUMNS", "ValueRow", "Values", "noted_columns", "values_of"]

COLUMNS = "columns"  # the note in the evidence that says how vectors are read
_RECORDS = 4  # shown, those brought back best
_MOST = 64  # columns; beyond this nobody reads them
_SIDES = {
    "targets": "private",
    "reconstructions": "came back",
    "nearest": "nearest held",
    "decoys": "nearest decoy",
}


@dataclass(frozen=True)
class ValueRow:
    column: str
    cells: list[str]


@dataclass(frozen=True)
class Values:
    """One record."""

    title: str
    heads: list[str]
    rows: list[ValueRow]


def noted_columns(columns: tuple[Column, ...]) -> list[list[Any]]:
    """As plain values, for the notes of the evidence."""
    return [[c.name, c.low, c.high, list(c.texts)] for c in columns]


def values_of(evidence: Shard, ranked_by: str) -> list[Values]:
    """The records that came back best; none where nobody said what the columns are."""
    columns = _columns(evidence.notes.get(COLUMNS))
    sides = {side: words for side, words in _SIDES.items() if side in evidence}
    if not columns or ranked_by not in evidence or len(sides) < 2 or len(columns) > _MOST:
        return []
    widths = [column.width for column in columns]
    if any(evidence[side].ndim != 2 or evidence[side].shape[1] != sum(widths) for side in sides):
        return []
    order = torch.argsort(RANKED[ranked_by][0] * evidence[ranked_by].double(), stable=True)
    found = []
    for rank, index in enumerate(order[:_RECORDS].tolist(), start=1):
        parts = [torch.split(evidence[side][index].float(), widths) for side in sides]
        rows = [
            ValueRow(column.name, [_cell(column, part[place]) for part in parts])
            for place, column in enumerate(columns)
        ]
        found.append(Values(f"Record of rank {rank}", list(sides.values()), rows))
    return found


def _cell(column: Column, inputs: Tensor) -> str:
    return column.decode(inputs) if column.texts else f"{float(column.decode(inputs)):.4g}"


def _columns(noted: Any) -> tuple[Column, ...]:
    if not isinstance(noted, list):
        return ()
    return tuple(Column(str(n), float(low), float(high), tuple(t)) for n, low, high, t in noted)
