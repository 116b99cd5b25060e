"""Which records count as the same: near-duplicates in a pool, and what somebody practically holds.

Images: squared error of at most 1% of the pool's variance. Texts: the same tokens. Vectors, such as rows of a
table: columns have units, so they are scaled by the pool, as in the line-up; and how near is near depends on
how densely the records lie. Two are the same where they are ten times nearer than the third neighbour
usually is (among distinct records, so that a few copies of everybody do not count as usual), and never
beyond 1% of the variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Key, Records

SAME = 0.01  # share of the pool's variance below which two records count as the same
_UNUSUAL = 0.01  # of the usual squared distance to a neighbour
_NEIGHBOUR = 3
_ROUNDING = 1e-9  # of the variance: what is nearer is equal
_ROWS = 512  # compared at once
_PLANNED = 4000  # records that are looked at beforehand
_ASKED = 1000  # records whose neighbours say what is usual


@dataclass(frozen=True, eq=False)
class Sameness:
    """When two records are the same, by the pool that they are in."""

    bar: float  # squared distance up to which they are
    scale: Tensor | None = None  # (d,) of the columns of vectors
    middle: Tensor | None = None  # (d,)

    def coordinates(self, inputs: Tensor) -> Tensor:
        """(n, *shape) to (n, d), in which distances are taken."""
        flat = inputs.flatten(1).double().cpu()
        if self.scale is None or self.middle is None:
            return flat
        return (flat - self.middle) / self.scale

    def near(self, inputs: Tensor, others: Tensor, own: Tensor | None = None) -> Tensor:
        """(n,) bool: there is the same among the others. own: (n,) their own places, which do not count."""
        wanted, given = self.coordinates(inputs), self.coordinates(others)
        near = torch.zeros(len(wanted), dtype=torch.bool)
        for start in range(0, len(wanted), _ROWS):
            apart = torch.cdist(wanted[start : start + _ROWS], given).square()
            if own is not None:
                apart.scatter_(1, own[start : start + _ROWS, None].cpu(), torch.inf)
            near[start : start + _ROWS] = ~(apart.amin(1) > self.bar)
        return near

    def later(self, inputs: Tensor, key: Key) -> Tensor:
        """(n,) bool: the same comes earlier in a random order."""
        flat = self.coordinates(inputs)
        order = torch.randperm(len(flat), generator=key.generator())
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order))
        copies = torch.zeros(len(flat), dtype=torch.bool)
        for start in range(0, len(flat), _ROWS):
            alike = torch.cdist(flat[start : start + _ROWS], flat).square() <= self.bar
            earlier = rank[None] < rank[start : start + _ROWS, None]
            copies[start : start + _ROWS] = (alike & earlier).any(1)
        return copies


def sameness(pool: Tensor) -> Sameness:
    """pool: (n, *shape)."""
    flat = pool.flatten(1).double().cpu()
    if not pool.is_floating_point():
        return Sameness(0.5)
    if not _vectors(pool):
        return Sameness(SAME * float(flat.var(0).mean()) * flat.shape[1])
    scale, middle = flat.std(0, correction=0).clamp_min(1e-12), flat.mean(0)
    bar = min(SAME * flat.shape[1], _UNUSUAL * _usual((flat - middle) / scale))
    return Sameness(max(bar, _ROUNDING * flat.shape[1]), scale, middle)


def _vectors(pool: Tensor) -> bool:
    return pool.is_floating_point() and pool.ndim != 4


def _usual(scaled: Tensor) -> float:
    """Median squared distance (n, d) to a neighbour, among distinct records."""
    distinct = torch.unique(scaled, dim=0)
    if len(distinct) < 2:
        return 0.0
    step = -(-len(distinct) // _ASKED)
    asked = distinct[::step]
    place = min(_NEIGHBOUR, len(distinct) - 1) + 1  # the first is the record itself
    parts = [
        torch.cdist(asked[start : start + _ROWS], distinct).square().kthvalue(place, dim=1).values
        for start in range(0, len(asked), _ROWS)
    ]
    return float(torch.cat(parts).median())


def copies_among(records: Records) -> tuple[int, int]:
    """How many are the same as an earlier one, and of how many: of vectors and texts, up to 4,000 of them."""
    if records.inputs.ndim != 2 or not len(records):
        return 0, 0
    some = records.inputs[:: -(-len(records) // _PLANNED)]
    return int(sameness(some).later(some, Key.from_seed(0)).sum()), len(some)


def practically_held(
    records: Tensor, pool: Records, oracle_mse: Tensor, own: Tensor | None = None
) -> Tensor:
    """(t,) bool: records (t, *shape) that the pool contains already, so nothing is learned from them.

    oracle_mse: (t,) to the nearest in the pool. own: (t,) their own places in it, which do not count.
    """
    if _vectors(pool.inputs):
        return sameness(pool.inputs).near(records, pool.inputs, own)
    return oracle_mse <= SAME * float(pool.inputs.flatten(1).double().var(0).mean())
