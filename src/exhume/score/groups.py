"""Whose records come back: the share of every group of targets, described and not tested.

An average hides people. Intervals are exact and Bonferroni's over all groups; a group is named only if its
lower limit exceeds the share of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exhume.core.evidence import GroupRow
from exhume.score.intervals import clopper_pearson

_MISSED = 0.05  # of all intervals together


def groups_of(ranks: Tensor, groups: Sequence[str]) -> tuple[GroupRow, ...] | None:
    """ranks: (t,) in the line-up, 1: identified, 0: left out; None: there are not two groups."""
    ranked = (ranks > 0).tolist()
    names = sorted({name for name, there in zip(groups, ranked, strict=False) if there})
    if len(names) < 2:
        return None
    won = ranks == 1
    overall = float(won.sum()) / max(1, int((ranks > 0).sum()))
    rows = []
    for name in names:
        own = torch.tensor([group == name for group in groups]) & (ranks > 0)
        identified, targets = int((won & own).sum()), int(own.sum())
        low, high = clopper_pearson(identified, targets, 1 - _MISSED / len(names))
        rows.append(GroupRow(name, identified, targets, low, high, low > overall))
    return tuple(rows)


def sentence_on_groups(rows: Sequence[GroupRow]) -> str:
    """Which groups stand out."""
    named = [
        f"{row.name} ({row.identified} of {row.targets}, at least {row.low:.0%})"
        for row in rows
        if row.stands_out
    ]
    if not named:
        return f"Of {len(rows)} groups of records no group stands out."
    return f"More than of all comes back of {', '.join(named)}."
