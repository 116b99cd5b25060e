"""Which records a step of training sees, the same for every model of a stack.

An epoch goes once through all n fixed and e extra records in a random order, cut into batches; the
last batch of an epoch may be shorter. The order is a permutation of the fixed records into which the
extra ones are inserted, one after another, each at a uniformly random place: so every order of the
n + e records is equally likely, and models with and without extra records see the fixed ones in the
same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key

__all__ = ["Batch", "Order"]


@dataclass(frozen=True, eq=False)
class Batch:
    fixed: Tensor  # (b,) rows of the fixed records
    extra: Tensor  # (f,) columns of every model's extra records

    def __len__(self) -> int:
        return len(self.fixed) + len(self.extra)


@dataclass(frozen=True)
class Order:
    """How training walks through its records: known to whoever holds the key."""

    size: int
    key: Key

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ExhumeError(f"batch: {self.size} given, at least 1 needed")

    def epoch(self, index: int, n: int, e: int) -> Tensor:
        """(n + e,) positions in the concatenation of fixed and extra records."""
        generator = self.key.fold("epoch", index).generator()
        order = torch.randperm(n, generator=generator).tolist()
        for extra in range(e):
            place = int(torch.randint(len(order) + 1, (), generator=generator))
            order.insert(place, n + extra)
        return torch.tensor(order, dtype=torch.int64)

    def batches(self, n: int, e: int) -> Iterator[Batch]:
        """Epoch after epoch, without end; nothing if there are no records."""
        index = 0
        while n + e:
            for part in torch.split(self.epoch(index, n, e), self.size):
                yield Batch(part[part < n], part[part >= n] - n)
            index += 1
