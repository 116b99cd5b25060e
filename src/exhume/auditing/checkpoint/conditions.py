"""Whether an attack on weights can work on a checkpoint: what it needs, and what was found, as a small table.

The first rows are read off the weights. The last two need the training records,
so only their owner sees them.
"""

from __future__ import annotations

import math

from exhume.attacks.margin.reading import GAP, LEFT, Premises
from exhume.auditing.checkpoint.fit import FAR, Fit
from exhume.core.evidence import Condition

__all__ = [
    "EQUATIONS",
    "START_GONE",
    "conditions_of",
    "counted",
    "doubt_of",
    "of_the_owner",
    "share_of",
]

_LEFT_FIRST = 0.05  # of the first layer's
START_GONE = "Nothing is left of the random start"
EQUATIONS = "There are more equations than unknowns"
_COUNTS = "The weights show how many records they were trained on"
_COUNTED = 0.8  # of the records given
_RIGHT = 0.9  # of the training records
_LITTLE, _MOST = 1e-5, 0.1  # shares that are said in another way


def conditions_of(premises: Premises, fit: Fit | None) -> tuple[Condition, ...]:
    """In the order in which they are read; fit: None without training records."""
    read = (_counted(premises, fit), _start_gone(premises), _enough(premises))
    return read if fit is None else (*read, *of_the_owner(fit, "the first layer"))


def doubt_of(conditions: tuple[Condition, ...]) -> str:
    """Why silence of the attack says nothing; empty: all it needs is there."""
    return "; ".join(one.why for one in conditions if one.why)


def _counted(premises: Premises, fit: Fit | None) -> Condition:
    if premises.whole:
        return Condition(
            _COUNTS,
            f"no: all {premises.unknowns} directions of the first layer are in use",
            holds=False,
            why=f"the first layer uses all of its {premises.unknowns} directions, so that records cannot be "
            "counted: there are as many records as inputs or neurons, or its random start is still there, "
            "which only training with weight decay removes",
        )
    return counted("the first layer", premises.records, premises.fall, fit)


def counted(layer: str, count: int, fall: float, fit: Fit | None) -> Condition:
    """By a layer's spectrum. fall: from the last singular value that counts to the next."""
    if fall < GAP:
        return Condition(
            _COUNTS,
            f"no: {count} by {layer}'s spectrum, which then runs on without a gap",
            holds=False,
            why=f"{layer}'s spectrum runs into the noise of its random start without a gap, so that "
            "records cannot be counted",
        )
    behind = "rounding" if math.isinf(fall) else f"{_times(fall)} less"
    found = f"{count} by {layer}'s spectrum, behind them {behind}"
    if fit is not None and count < _COUNTED * fit.records:
        return Condition(
            _COUNTS,
            f"{found}; {fit.records} are given",
            holds=False,
            why=f"the weights show {count} records where {fit.records} were trained on: the others left no "
            "trace of their own",
        )
    return Condition(_COUNTS, found, holds=True)


def _start_gone(premises: Premises) -> Condition:
    """The layer that the attack reads, if it has lost its start; where no layer has, the second."""
    first, second = premises.left_first, premises.left_second
    if premises.whole:
        return Condition(START_GONE, "cannot be told where records cannot be counted", holds=False)
    if second is not None and (premises.spans or first > _LEFT_FIRST):
        left, most, layer = second, LEFT, "second"
    else:
        left, most, layer = first, _LEFT_FIRST, "first"
    found = f"{share_of(left)} of the {layer} layer lies outside what the records span, at most {most:.1%}"
    why = (
        f"the network keeps its random start ({share_of(left)} of the {layer} layer), and only training with "
        "weight decay until that is gone makes the weights a sum over the records"
    )
    holds = left <= most
    return Condition(START_GONE, found, holds=holds, why="" if holds else why)


def _enough(premises: Premises) -> Condition:
    if premises.spans:
        have, want = premises.equations, premises.unknowns
        found = f"{have:,} equations for the {want:,} unknowns of each record"
    else:
        have, want = premises.neurons, premises.records
        found = f"{have:,} neurons for {want:,} records"
    holds = have > want
    why = "" if holds else f"too many records for so few neurons: {found}"
    return Condition(EQUATIONS, found, holds=holds, why=why)


def of_the_owner(fit: Fit, layer: str) -> list[Condition]:
    """What only the training records tell. layer: the one that they must explain."""
    learnt = "The network has learnt its training records"
    if fit.right is None:
        return [Condition(learnt, fit.unfit, holds=False, why=fit.unfit)]
    right = Condition(
        learnt,
        f"it gets {fit.right:.0%} of {fit.records:,} right",
        holds=fit.right >= _RIGHT,
        why=""
        if fit.right >= _RIGHT
        else f"the network gets only {fit.right:.0%} of its training records right",
    )
    needs = "The training records explain the weights"
    if not right.holds:
        return [right]
    if fit.residual is None:
        return [right, Condition(needs, fit.unfit, holds=False, why=fit.unfit)]
    holds = fit.residual <= FAR
    why = (
        "this network is not at the point the attack needs: its training records leave "
        f"{fit.residual:.0%} of {layer} unexplained"
    )
    found = f"{share_of(1 - fit.residual)} of {layer}, at least {1 - FAR:.0%}"
    return [right, Condition(needs, found, holds=holds, why="" if holds else why)]


def share_of(value: float) -> str:
    """In percent, as exactly as it matters."""
    if value < _LITTLE:
        return f"less than {_LITTLE:.3%}"
    return f"{100 * value:.2g}%" if value < _MOST else f"{value:.0%}"


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.1f} times"
