"""How far a line-up goes: the privacy parameters that it rules out, and the groups whose records come back.

An adversary who knows all records but one, and k strangers besides it, names the record with a probability
of at most e^epsilon times that of a guess (Balle22, reconstruction robustness). So

    epsilon >= ln(rate / chance)        mu >= Phi^-1(rate) - Phi^-1(chance)

with a lower limit in the place of the rate; chance is the number of measures over k + 1.

An average hides people. The share of every group is described and not tested: intervals are exact and
Bonferroni's over all groups, and a group is named only if its lower limit exceeds the share of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
from scipy.stats import beta, norm
from torch import Tensor

from exhume.core.evidence import Epsilon, GroupRow
from exhume.core.records import Column
from exhume.score.intervals import clopper_pearson

_TAIL = 0.05  # of a one-sided limit, for all rows of an audit together
_MISSED = 0.05  # of all intervals of groups together
_VALUES, _PARTS = (
    10,
    4,
)  # different numbers of a column; of more, so many ranges with as many records


def epsilon_shown(
    identified: int,
    targets: int,
    chance: float,
    *,
    rows: int = 1,
    estimate: bool = False,
) -> Epsilon:
    """rows: tests of the audit, among which the level is divided. estimate: trials are not independent."""
    tail = _TAIL / max(1, rows)
    low, most = (  # one-sided exact limits of the share
        float(beta.ppf(tail, count, targets - count + 1)) if count else 0.0
        for count in (identified, targets)
    )
    at_least, cannot_exceed = (
        max(0.0, log(rate / chance)) if rate else 0.0 for rate in (low, most)
    )
    mu, mu_most = (_gaussian(rate, chance) for rate in (low, most))
    about = "about " if estimate else ""
    why = (
        " (an estimate: targets share strangers or the randomness of training)" if estimate else ""
    )
    sentence = (
        f"{identified} of {targets} identified: epsilon is at least {about}{at_least:.2g}{why}; this "
        f"line-up cannot show more than {cannot_exceed:.2g}. Gaussian privacy: mu is at least {about}"
        f"{mu:.2g}; it cannot show more than {mu_most:.2g}."
    )
    return Epsilon(at_least, cannot_exceed, 0.0, mu, mu_most, estimate, sentence)


def _gaussian(rate: float, chance: float) -> float:
    if not 0 < rate < 1 or not 0 < chance < 1:
        return 0.0
    return max(0.0, float(norm.ppf(rate) - norm.ppf(chance)))


# Groups


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


def groups_in(inputs: Tensor, columns: Sequence[Column], name: str) -> list[str]:
    """(t, d) rows of a table to the group of each by a column: a text, a number, or a range of numbers."""
    place = [column.name for column in columns].index(name)
    column = columns[place]
    part = torch.split(inputs.flatten(1), [one.width for one in columns], dim=1)[place]
    if column.texts or len(torch.unique(part)) <= _VALUES:
        return [f"{name} {column.decode(row)}" for row in part]
    cuts = torch.quantile(part[:, 0].double(), torch.linspace(0, 1, _PARTS + 1).double())
    ends = [column.decode(cut[None]) for cut in cuts]
    number = torch.bucketize(part[:, 0].double(), cuts[1:-1], right=True).tolist()
    return [f"{name} {ends[i]} to {ends[i + 1]}" for i in number]


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
