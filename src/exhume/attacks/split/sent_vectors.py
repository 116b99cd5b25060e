"""Vectors that a client sends, one for each word of a text: told apart, numbered, without their positions.

Positions that nobody published are found by a vote. What is sent for word w at place p is E_w + P_p, so that
the vectors of two places are the same set but for a shift, P_q - P_p: of all differences between a vector of
one place and a vector of the other, the shift is the one that occurs most often.

Shapes: n texts, l places, e numbers of a vector; s distinct vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import Key

_AT_ONCE = 4096
_COMPARED = 300  # vectors of a place whose distances are looked at
_SAME = 1e-6  # of their length: two vectors are the same
_SHARE = (0.001, 0.5)  # quantiles of distances between which the gap lies
_CELL = 3  # directions in which differences are compared
_VOTES = 3  # words that must agree on a shift
_CLEAR = 1.5  # times the votes of the next one


def unplaced(features: Tensor, places: Tensor) -> Tensor:
    """(n, l, e) without what is added at each place, (l, e); zeros stay zeros."""
    real = (features != 0).any(2, keepdim=True)
    return (features - places) * real


def real_ones(vectors: Tensor) -> Tensor:
    """(n, l, e) to the (m, e) that are there."""
    return vectors[(vectors != 0).any(2)]


def numbered(vectors: Tensor, centres: Tensor, apart: float) -> tuple[Tensor, Tensor]:
    """(n, l, e), zeros where there is nothing, to numbers (n, l) and what they stand for, (s, e).

    A vector has the number of the nearest centre within `apart`, else it becomes one. Numbers are from 1;
    what is not a number (a place that is not known) has 0.
    """
    real = (vectors != 0).any(2) & ~vectors.isnan().any(2)
    for part in torch.split(vectors[real], _AT_ONCE):
        new = part[nearest_of(part, centres)[0] > apart]
        while len(new):
            centres = torch.cat([centres, new[:1]])
            new = new[(new - new[0]).norm(dim=1) > apart]
    numbers = torch.zeros(real.shape, dtype=torch.long, device=vectors.device)
    numbers[real] = 1 + nearest_of(vectors[real], centres)[1]
    return numbers, centres


def nearest_of(vectors: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) distance to the nearest centre and which it is; infinite where there is none."""
    device = vectors.device
    if not len(centres):
        nowhere = torch.zeros(len(vectors), dtype=torch.long, device=device)
        return torch.full_like(vectors[:, 0], float("inf")), nowhere
    parts = [torch.cdist(part, centres).min(1) for part in torch.split(vectors, _AT_ONCE)]
    return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])


def gap_between(vectors: Tensor) -> float:
    """A distance that one word's vectors stay below, and two words' exceed: amid the widest gap.

    Vectors of the same place are compared, so that whatever is added there does not matter.
    """
    found = []
    for column in vectors[:_COMPARED].unbind(1):
        here = column[(column != 0).any(1)]
        if len(here) > 1:
            apart = torch.cdist(here, here, compute_mode="donot_use_mm_for_euclid_dist")
            found.append(apart[tuple(torch.triu_indices(len(here), len(here), 1))])
    scale = float(real_ones(vectors).norm(dim=1).median()) if len(real_ones(vectors)) else 1.0
    every = torch.cat(found).double() if found else torch.zeros(0)
    if len(every) < 2:
        return _SAME * scale
    logs = every.clamp_min(_SAME * scale).log().sort().values
    low, high = (round(share * (len(logs) - 1)) for share in _SHARE)
    inner = logs[low : high + 1]
    if len(inner) < 2:
        return _SAME * scale
    at = int(inner.diff().argmax())
    return float(((inner[at] + inner[at + 1]) / 2).exp())


def shifts(vectors: Tensor, apart: float) -> Tensor:
    """(n, l, e) to what is added at each place (l, e), but for one vector common to all.

    Not a number where too few words agree: a place at which everybody writes the same, for instance.
    """
    length, width = vectors.shape[1:]
    own = [numbered(vectors[:, p : p + 1], vectors[0, :0], apart)[1] for p in range(length)]
    order = sorted(range(length), key=lambda p: -len(own[p]))
    directions = torch.randn(width, _CELL, generator=Key.from_seed(0).fold("votes").generator())
    directions = (directions / directions.norm(dim=0)).to(vectors)
    found = torch.full_like(vectors[0], float("nan"))
    found[order[0]] = 0.0
    known = own[order[0]]
    for place in order[1:]:
        shift = _voted(own[place], known, apart, directions)
        if shift is None:
            continue
        found[place] = shift
        moved = own[place] - shift
        known = torch.cat([known, moved[nearest_of(moved, known)[0] > apart]])
    return found


def _voted(here: Tensor, known: Tensor, apart: float, directions: Tensor) -> Tensor | None:
    """(e,) the shift from the known vectors (k, e) to those of one place (s, e) that most pairs agree on."""
    if not len(here) or not len(known):
        return None
    apart_along = (here @ directions)[:, None] - (known @ directions)[None]
    cells = (apart_along / apart).round().long().flatten(0, 1)
    _, which, votes = torch.unique(cells, dim=0, return_inverse=True, return_counts=True)
    most = int(votes.max())
    best = votes.argmax()
    others = votes.clone()
    others[best] = 0
    if most < _VOTES or most < _CLEAR * int(others.max()):
        return None
    agreeing = (which == best).nonzero()[:, 0]
    row, column = agreeing // len(known), agreeing % len(known)
    return (here[row] - known[column]).mean(0)
