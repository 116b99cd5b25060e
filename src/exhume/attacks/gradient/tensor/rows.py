"""Hidden weights that are read in blocks: a tensor, or rows that are drawn afresh whenever they are read.

A server that draws its query from a key need not hold it: 2^20 neurons of 784 inputs are 3 GB, a block 6 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key

__all__ = ["BLOCK", "DrawnRows", "Rows", "blocks"]

BLOCK = 1 << 11  # rows


@dataclass(frozen=True)
class DrawnRows:
    """(m, d) numbers of N(0, 1), the same at every reading."""

    key: Key
    count: int
    inputs: int
    first: int = 0  # of the rows that the key names

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, self.inputs

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def __getitem__(self, rows: slice) -> DrawnRows:
        start, stop, _ = rows.indices(self.count)
        if start % BLOCK:
            raise ExhumeError(f"rows: a part begins at a multiple of {BLOCK}, not at {start}")
        return DrawnRows(self.key, stop - start, self.inputs, self.first + start)

    def blocks(self) -> Iterator[Tensor]:
        for start in range(0, self.count, BLOCK):
            own = self.key.fold("rows", self.first + start).generator()
            yield torch.randn(BLOCK, self.inputs, generator=own)[: self.count - start]


Rows = Tensor | DrawnRows


def blocks(rows: Rows) -> Iterator[Tensor]:
    """Of `BLOCK` rows each, in order."""
    return rows.blocks() if isinstance(rows, DrawnRows) else iter(torch.split(rows, BLOCK))
