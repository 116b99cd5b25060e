"""Exact records behind a piecewise linear activation, from dL/dW inside the span.

For ReLU the slope of F at a point is a sum over the open gates,

    grad F(p_j) = sum_i D_ji v_i,     D_ji = [p_j · m_i > 0],   v_i = r_i m_i,

so there is a vector q_i (of the basis dual to the v_i) for which q_i · grad F takes two values only. Points
on one side of record i's hyperplane share the gate i: their slopes, less their mean, have rank B - 1, and
what is missing is q_i. A rough direction of the record is enough to choose such points, and the two values
are a certificate that needs no truth. Leaky gates only shift the two values. Where slopes are exact,
differences of theirs that recur give the gates at once (`recurring.py`); rough directions serve elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.span.recurring import recurring_gates
from exhume.attacks.gradient.span.regression import Samples
from exhume.core.contract import Key

__all__ = ["CERTAIN", "Gates", "Opened"]

CERTAIN = 1e-3  # mean distance to the nearer of two values, below which they are two values
_SHARES = (0.25, 0.12, 0.06, 0.03)  # of the neurons, tried as one side of a hyperplane
_ROUNDS = 6


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
        duals, spreads = self._best(self.points.shape[1])
        vectors = torch.linalg.pinv(duals.T) / drop  # rows r_i m_i
        gates = self.slopes @ duals.T
        gates = gates - gates.mean(0)
        signs = ((self.points @ vectors.T) * gates).sum(0).sign()
        norms = vectors.norm(dim=1)
        return Opened(vectors / norms[:, None] * signs[:, None], norms * signs, spreads)

    def _add(self, dual: Tensor, spread: float) -> None:
        for i, other in enumerate(self.duals):
            if self._same(dual, other):
                if spread < self.spreads[i]:
                    self.duals[i], self.spreads[i] = dual, spread
                return
        self.duals.append(dual)
        self.spreads.append(spread)

    def _best(self, count: int) -> tuple[Tensor, Tensor]:
        """(count, q) and (count,); where too few gates differ, the rest is what they leave over."""
        order = sorted(range(len(self.duals)), key=lambda i: self.spreads[i])[:count]
        duals, spreads = [self.duals[i] for i in order], [self.spreads[i] for i in order]
        while len(duals) < count:
            rows = torch.stack(duals) if duals else self.slopes[:0]
            duals.append(_missing(rows))
            spreads.append(1.0)
        return torch.stack(duals), torch.tensor(spreads)

    def _same(self, left: Tensor, right: Tensor) -> bool:
        """Two duals of one gate jump at the same points."""
        some = self.slopes[:1000]
        both = torch.stack([some @ left, some @ right])
        return float(torch.corrcoef(both)[0, 1].abs()) > 0.99


def _near(points: Tensor, slopes: Tensor, start: Tensor) -> tuple[Tensor, float]:
    """The gate of a record whose direction is roughly known."""
    order = (points @ start).argsort()
    best = (slopes.new_zeros(slopes.shape[1]), float("inf"))
    for share in _SHARES:
        count = max(int(share * len(order)), 2)
        found = _refined(slopes, order[:count], order[-count:])
        if found[1] < best[1]:
            best = found
        if best[1] < CERTAIN:
            break
    return best


def _refined(slopes: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, float]:
    """(q,) the vector whose product with the slopes jumps by one at a gate, and its certificate.

    From two groups of neurons that mostly lie on either side; those that fit best regroup them.
    """
    best, certificate = slopes.new_zeros(slopes.shape[1]), float("inf")
    for _ in range(_ROUNDS):
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
