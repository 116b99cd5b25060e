"""Gates of a piecewise linear network, from differences of slopes that recur.

Two neurons whose points lie on the same side of every record's hyperplane but one have slopes that differ by
exactly v_i = r_i m_i. The m^2 / 2 pairs hold that difference many times (about m^2 / 2^B for independent
records, far more often for images, which lie close to each other); other differences recur less. A
candidate names its own hyperplane, p · v_i = 0, and is tested without the truth: the side a point lies on is
then a linear function of the slopes, to rounding error. Found gates are taken out of the slopes, and those
left over have fewer patterns and recur more.

SPEAR (Dimitrov et al. 2024) draws B rows at a time for the same purpose. Pairs are ours. No moments and no
Gaussian weights are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Key

__all__ = ["Side", "recurring_gates"]

_ROWS = 2500  # compared with each other at a time: 3 million pairs
_ROUNDS = 40
_IDLE = 5  # rounds without a new gate after which the search ends
_CANDIDATES = 512  # most frequent differences that are tested in a round
_GRID = 3e-5  # of the largest slope: equal differences agree to rounding (1e-7 to 1e-6)
_SIDES = 1e-3  # mean square error of a side, linear in the slopes; rounding leaves 1e-9


@dataclass(frozen=True, eq=False)
class Side:
    """One gate: which points it is open at, and by how much the slope differs."""

    open: Tensor  # (m,) bool
    step: Tensor  # (q,) slope of an open gate less that of a closed one


def recurring_gates(points: Tensor, slopes: Tensor, key: Key) -> list[Side]:
    """At most q gates behind points and slopes (m, q); fewer where differences do not recur."""
    columns = torch.linalg.qr(torch.cat([slopes, torch.ones_like(slopes[:, :1])], 1))
    found: list[Side] = []
    left, idle = slopes, 0
    for turn in range(_ROUNDS):
        if len(found) == points.shape[1] or idle == _IDLE:
            break
        steps = _frequent(left, key.fold("round", turn))
        fresh = _tested(points, columns, steps, found)
        idle = 0 if fresh else idle + 1
        for side in fresh:
            found.append(side)
            left = left - side.open.to(left)[:, None] * side.step
    return found


def _frequent(slopes: Tensor, key: Key) -> Tensor:
    """(c, q) differences that occur at least twice among some rows, most frequent first."""
    generator = key.generator()
    rows = slopes[torch.randperm(len(slopes), generator=generator)[:_ROWS]]
    size = float(rows.abs().max())
    if not size > 0:
        return rows[:0]
    codes = torch.randn(slopes.shape[1], 2, dtype=slopes.dtype, generator=generator)
    rows = _distinct(rows, codes, size)
    left, right = torch.triu_indices(len(rows), len(rows), 1)
    coded = (rows @ codes) / (_GRID * size)
    apart = coded[left] - coded[right]
    apart = apart * torch.where(apart[:, :1] < 0, -1.0, 1.0).to(apart)  # v and -v are one
    cells = apart.round().long()
    names, places, counts = torch.unique(
        cells[:, 0] * (1 << 31) + cells[:, 1], return_inverse=True, return_counts=True
    )
    order = counts.argsort(descending=True, stable=True)[:_CANDIDATES]
    order = order[counts[order] > 1]
    first = torch.full((len(names),), len(places)).scatter_reduce(
        0, places, torch.arange(len(places)), "amin"
    )
    return rows[left[first[order]]] - rows[right[first[order]]]


def _distinct(rows: Tensor, codes: Tensor, size: float) -> Tensor:
    """One row of each pattern: equal rows say nothing, and many neurons share a pattern."""
    cells = ((rows @ codes) / (_GRID * size)).round().long()
    _, places = torch.unique(cells[:, 0] * (1 << 31) + cells[:, 1], return_inverse=True)
    last = torch.zeros(int(places.max()) + 1, dtype=torch.long)
    last[places] = torch.arange(len(rows))
    return rows[last]


def _tested(
    points: Tensor, columns: tuple[Tensor, Tensor], steps: Tensor, known: list[Side]
) -> list[Side]:
    """Those candidates whose hyperplane is a gate's, each once and none that is known.

    columns: the slopes and a constant, Q R. A side is slopes · dual + c.
    """
    basis, corner = columns
    sides = (points @ steps.T > 0).to(points)  # (m, c)
    inner = basis.T @ sides
    off = (sides - basis @ inner).square().mean(0)
    duals = torch.linalg.solve_triangular(corner, inner, upper=True)
    fresh: list[Side] = []
    for index in (off < _SIDES).nonzero()[:, 0]:
        side = _oriented(sides[:, index] > 0, duals[:, index], steps[index])
        if side is not None and not any(_same(side.open, other.open) for other in [*known, *fresh]):
            fresh.append(side)
    return fresh


def _oriented(one: Tensor, dual: Tensor, step: Tensor) -> Side | None:
    """Which of the two sides is open: there the slopes have `step` more than on the other.

    The constant c is 0 or a leak's small share for the open side, and 1 less that for the closed one.
    """
    if not 0 < int(one.sum()) < len(one):
        return None
    opened, vector = (one, dual[:-1]) if float(dual[-1]) < 0.5 else (~one, -dual[:-1])
    along = float(vector @ step)
    if not abs(abs(along) - 1) < 1e-2:  # a difference of more than one gate
        return None
    return Side(opened, step if along > 0 else -step)


def _same(left: Tensor, right: Tensor) -> bool:
    return int((left != right).sum()) in (0, len(left))
