"""Exact records behind a piecewise linear activation, from dL/dW inside the span.

For ReLU the slope of F at a point is a sum over the open gates,

    grad F(p_j) = sum_i D_ji v_i,     D_ji = [p_j · m_i > 0],   v_i = r_i m_i,

so there is a vector q_i (of the basis dual to the v_i) for which q_i · grad F takes two values only: a
certificate that needs no truth. Leaky gates only shift the two values. Two ways to the q_i:

*Recurring differences*, where slopes are exact. Two neurons whose points lie on the same side of every
record's hyperplane but one have slopes that differ by exactly v_i. The m^2 / 2 pairs hold that difference
many times (about m^2 / 2^B for independent records, far more often for images, which lie close to each
other); other differences recur less. A candidate names its own hyperplane, p · v_i = 0: the side a point lies
on is then a linear function of the slopes, to rounding error. Found gates are taken out of the slopes, and
those left over recur more.

*Rough directions* of the records elsewhere. Points on one side of record i's hyperplane share the gate i:
their slopes, less their mean, have rank B - 1, and what is missing is q_i.

SPEAR (Dimitrov et al. 2024) draws B rows at a time for the same purpose. Pairs are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.moments import Samples
from exhume.core.contract import Key

CERTAIN = 1e-3  # mean distance to the nearer of two values, below which they are two values
_SHARES = (0.25, 0.12, 0.06, 0.03)  # of the neurons, tried as one side of a hyperplane
_REGROUPED = 6  # times the two groups of neurons at a gate
_ROWS = 2500  # compared with each other at a time: 3 million pairs
_ROUNDS = 40
_IDLE = 5  # rounds without a new gate after which the search ends
_CANDIDATES = 512  # most frequent differences that are tested in a round
_GRID = 3e-5  # of the largest slope: equal differences agree to rounding (1e-7 to 1e-6)
_SIDES = 1e-3  # mean square error of a side, linear in the slopes; rounding leaves 1e-9


@dataclass(frozen=True, eq=False)
class Opened:
    directions: Tensor  # (b, q) unit, signed: the gate is open where p · direction > 0
    strengths: Tensor  # (b,) r_i times the record's norm
    spreads: Tensor  # (b,) certificate of each, see CERTAIN


class Gates:
    """Gates found so far: duals that differ from each other, with their certificates."""

    def __init__(self, samples: Samples) -> None:
        assert samples.slopes is not None
        self.points, self.slopes = samples.points, samples.slopes
        self.duals: list[Tensor] = []
        self.spreads: list[float] = []

    @property
    def complete(self) -> bool:
        """Whether there are as many certain gates as records."""
        return sum(spread < CERTAIN for spread in self.spreads) >= self.points.shape[1]

    def look_near(self, starts: Tensor) -> None:
        """Try rough directions (s, q) of the records."""
        for start in starts:
            self._add(*_near(self.points, self.slopes, start))

    def look_for_steps(self, key: Key) -> None:
        """Take the gates that recurring differences of slopes give."""
        for side in recurring_gates(self.points, self.slopes, key):
            low, high = (~side.open).nonzero()[:, 0], side.open.nonzero()[:, 0]
            self._add(*_refined(self.slopes, low, high))

    def opened(self, drop: float) -> Opened:
        """The records behind the q best gates; drop: slope of an open gate less that of a closed one."""
        count = self.points.shape[1]
        order = sorted(range(len(self.duals)), key=lambda i: self.spreads[i])[:count]
        best = [self.duals[i] for i in order]
        while len(best) < count:  # where too few gates differ, the rest is what they leave over
            best.append(_missing(torch.stack(best) if best else self.slopes[:0]))
        spreads = torch.tensor([self.spreads[i] for i in order] + [1.0] * (count - len(order)))
        duals = torch.stack(best)
        vectors = torch.linalg.pinv(duals.T) / drop  # rows r_i m_i
        gates = self.slopes @ duals.T
        gates = gates - gates.mean(0)
        signs = ((self.points @ vectors.T) * gates).sum(0).sign()
        norms = vectors.norm(dim=1)
        return Opened(vectors / norms[:, None] * signs[:, None], norms * signs, spreads)

    def _add(self, dual: Tensor, spread: float) -> None:
        some = self.slopes[:1000]
        for i, other in enumerate(self.duals):
            both = torch.stack([some @ dual, some @ other])
            if float(torch.corrcoef(both)[0, 1].abs()) > 0.99:  # they jump at the same points
                if spread < self.spreads[i]:
                    self.duals[i], self.spreads[i] = dual, spread
                return
        self.duals.append(dual)
        self.spreads.append(spread)


def _near(points: Tensor, slopes: Tensor, start: Tensor) -> tuple[Tensor, float]:
    """The gate of a record whose direction is roughly known."""
    order = (points @ start).argsort()
    best = (slopes.new_zeros(slopes.shape[1]), float("inf"))
    for share in _SHARES:
        count = max(int(share * len(order)), 2)
        refined = _refined(slopes, order[:count], order[-count:])
        if refined[1] < best[1]:
            best = refined
        if best[1] < CERTAIN:
            break
    return best


def _refined(slopes: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, float]:
    """(q,) the vector whose product with the slopes jumps by one at a gate, and its certificate.

    From two groups of neurons that mostly lie on either side; those that fit best regroup them.
    """
    best, certificate = slopes.new_zeros(slopes.shape[1]), float("inf")
    for _ in range(_REGROUPED):
        if min(len(low), len(high)) < 2:
            break
        groups = [slopes[low] - slopes[low].mean(0), slopes[high] - slopes[high].mean(0)]
        vector = _missing(torch.cat(groups))
        along = slopes @ vector
        closed, opened = along[low].median(), along[high].median()
        jump = opened - closed
        if float(jump.abs()) <= 1e-300:
            break
        place = (along - closed) / jump
        off = torch.minimum(place.abs(), (place - 1).abs())
        spread = float(off.mean())
        if not spread < certificate:
            break
        # an open gate has the larger slope: sum_i v_i times 1 against the leak (0 for ReLU)
        flip = -1 if float(closed.abs()) > float(opened.abs()) else 1
        best, certificate = vector / jump * flip, spread
        if spread < 1e-8:
            break
        sure = off <= off.quantile(0.5)
        low, high = (sure & (place < 0.5)).nonzero()[:, 0], (sure & (place >= 0.5)).nonzero()[:, 0]
    return best, certificate


def _missing(rows: Tensor) -> Tensor:
    """(q,) the direction the rows have least of."""
    axes: Tensor = torch.linalg.eigh(rows.T @ rows)[1]
    return axes[:, 0]


@dataclass(frozen=True, eq=False)
class Side:
    """One gate: which points it is open at, and by how much the slope differs."""

    open: Tensor  # (m,) bool
    step: Tensor  # (q,) slope of an open gate less that of a closed one


def recurring_gates(points: Tensor, slopes: Tensor, key: Key) -> list[Side]:
    """At most q gates behind points and slopes (m, q); fewer where differences do not recur."""
    columns = torch.linalg.qr(torch.cat([slopes, torch.ones_like(slopes[:, :1])], 1))
    sides: list[Side] = []
    left, idle = slopes, 0
    for turn in range(_ROUNDS):
        if len(sides) == points.shape[1] or idle == _IDLE:
            break
        steps = _frequent(left, key.fold("round", turn))
        fresh = _tested(points, columns, steps, sides)
        idle = 0 if fresh else idle + 1
        for side in fresh:
            sides.append(side)
            left = left - side.open.to(left)[:, None] * side.step
    return sides


def _frequent(slopes: Tensor, key: Key) -> Tensor:
    """(c, q) differences that occur at least twice among some rows, most frequent first."""
    generator = key.generator()
    rows = slopes[torch.randperm(len(slopes), generator=generator)[:_ROWS]]
    size = float(rows.abs().max())
    if not size > 0:
        return rows[:0]
    codes = torch.randn(slopes.shape[1], 2, dtype=slopes.dtype, generator=generator)
    # one row of each pattern: equal rows say nothing, and many neurons share a pattern
    _, places = torch.unique(_cells(rows @ codes / (_GRID * size)), return_inverse=True)
    last = torch.zeros(int(places.max()) + 1, dtype=torch.long)
    last[places] = torch.arange(len(rows))
    rows = rows[last]
    left, right = torch.triu_indices(len(rows), len(rows), 1)
    coded = (rows @ codes) / (_GRID * size)
    apart = coded[left] - coded[right]
    apart = apart * torch.where(apart[:, :1] < 0, -1.0, 1.0).to(apart)  # v and -v are one
    names, places, counts = torch.unique(_cells(apart), return_inverse=True, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:_CANDIDATES]
    order = order[counts[order] > 1]
    first = torch.full((len(names),), len(places)).scatter_reduce(
        0, places, torch.arange(len(places)), "amin"
    )
    return rows[left[first[order]]] - rows[right[first[order]]]


def _cells(coded: Tensor) -> Tensor:
    """(r, 2) coordinates to the numbers (r,) of the cells they lie in."""
    cells = coded.round().long()
    return cells[:, 0] * (1 << 31) + cells[:, 1]


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
        if side is None:
            continue
        apart = [int((side.open != other.open).sum()) for other in [*known, *fresh]]
        if not {0, len(side.open)} & set(apart):
            fresh.append(side)
    return fresh


def _oriented(above: Tensor, dual: Tensor, step: Tensor) -> Side | None:
    """Which of the two sides is open: there the slopes have `step` more than on the other.

    The constant c is 0 or a leak's small share for the open side, and 1 less that for the closed one.
    """
    if not 0 < int(above.sum()) < len(above):
        return None
    opened, vector = (above, dual[:-1]) if float(dual[-1]) < 0.5 else (~above, -dual[:-1])
    along = float(vector @ step)
    if not abs(abs(along) - 1) < 1e-2:  # a difference of more than one gate
        return None
    return Side(opened, step if along > 0 else -step)
