"""Who holds which records: the training set but one, the targets, the adversary's own, the rest.

Disjoint by construction: one permutation of all records, cut into consecutive pieces.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records

__all__ = ["Sizes", "Split", "places", "split"]


@dataclass(frozen=True)
class Sizes:
    """How many records each role gets; each is 0 or more."""

    fixed: int = 0  # D-: training records the informed adversary knows
    target: int = 0  # records to be reconstructed
    shadow: int = 0  # records the adversary trains shadow models on
    public: int = 0  # further records of the same distribution
    test: int = 0  # held out, to measure the victim's accuracy

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0:
                raise ExhumeError(f"sizes: {field.name} is {value}, it must be 0 or more")

    @property
    def total(self) -> int:
        return sum(astuple(self))


@dataclass(frozen=True, eq=False)
class Split:
    """One set of records, dealt out; no record is in two of them."""

    fixed: Records
    target: Records
    shadow: Records
    public: Records
    test: Records


def split(records: Records, sizes: Sizes, key: Key) -> Split:
    """Deal records (n, *shape) out at random; the same key deals the same way."""
    if sizes.total > len(records):
        parts = " + ".join(f"{f.name} {getattr(sizes, f.name)}" for f in fields(sizes))
        raise ExhumeError(
            f"sizes: {sizes.total} records needed ({parts}), {len(records)} available"
        )
    return Split(*(records[piece] for piece in places(len(records), sizes, key)))


def places(count: int, sizes: Sizes, key: Key) -> tuple[Tensor, ...]:
    """Which of `count` records each role gets, in the order of `Split`."""
    order = torch.randperm(count, generator=key.generator())
    return torch.split(order[: sizes.total], list(astuple(sizes)))
