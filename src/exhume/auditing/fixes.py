"""What stops a leak: defences that apply, each put to the same attack, with what it costs.

A fix is judged by an adversary who knows of it: private training and rounded weights are attacked with
shadow models that are trained that way, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from exhume.contract import ExhumeError, Progress
from exhume.notation import duration_of
from exhume.report.folder import RunFolder
from exhume.results import Chart, FixRow, Point, Rate

__all__ = ["Fix", "Tried", "fix_charts", "try_fixes"]


@dataclass(frozen=True)
class Tried:
    """A fix, and what the attack still brought back."""

    leak: Rate | None  # None: no attack applies any more
    verdict: str
    kept: float | None  # accuracy of the model, or how much of an update stays
    before: float | None
    by: str = ""  # the attacker that brought most back, where there are several
    cost: str = ""  # in words, besides what is kept


@dataclass(frozen=True, eq=False)
class Fix:
    id: str
    words: str
    guarantee: str
    measure: str  # what `kept` is
    seconds: float  # estimated
    run: Callable[[RunFolder, Progress], Tried]
    release: str = ""  # what it protects
    short: str = ""  # for a chart; else the words


def try_fixes(
    fixes: Sequence[Fix], left: float | None, folder: RunFolder, progress: Progress
) -> list[FixRow]:
    """Best first. left: seconds of the budget; None: no limit."""
    rows: list[FixRow] = []
    for place, fix in enumerate(fixes):
        progress("trying fixes", place, len(fixes))
        row = FixRow(fix.id, fix.release, fix.words, fix.short or fix.words, fix.guarantee, "")
        if left is not None and fix.seconds > left:
            why = f"not tried: about {duration_of(fix.seconds)}, {duration_of(max(left, 0))} left"
            rows.append(replace(row, outcome=why))
            continue
        started = time.perf_counter()
        try:
            tried = fix.run(folder, progress)
        except ExhumeError as why:
            rows.append(replace(row, outcome=f"not tried: {why}"))
            continue
        left = None if left is None else left - fix.seconds
        rows.append(
            replace(
                row,
                tried=True,
                outcome=_outcome(fix, tried),
                leak=tried.leak,
                verdict=tried.verdict,
                measure=fix.measure,
                kept=tried.kept,
                before=tried.before,
                seconds=time.perf_counter() - started,
            )
        )
    progress("trying fixes", len(fixes), len(fixes))
    return sorted(rows, key=_rank)


def _rank(row: FixRow) -> tuple[bool, bool, float, float]:
    """Those that stop the leak first, among these the cheapest; then by what still leaks."""
    if row.leak is None:
        return True, True, 1.0, 0.0
    lost = (row.before or 0.0) - (row.kept or 0.0)
    stopped = row.verdict == "no leak found"
    return False, not stopped, 0.0 if stopped else row.leak.share, lost


def _outcome(fix: Fix, tried: Tried) -> str:
    words = "no attack applies to it any more, so that nothing is known"
    if tried.leak is not None:
        words = f"{tried.leak.successes} of {tried.leak.trials} records recovered"
        words += f" by the strongest attacker ({tried.by})" if tried.by else ""
    if tried.kept is None or tried.before is None:
        return words
    cost = f"; {tried.cost}" if tried.cost else ""
    return f"{words}, {fix.measure} {100 * tried.before:.1f} → {100 * tried.kept:.1f}{cost}"


def fix_charts(rows: Sequence[FixRow], before: Mapping[str, Rate | None]) -> list[Chart]:
    """What still leaks under each fix, a chart for each release. before: by release, without any fix."""
    charts = []
    for release, leak in before.items():
        tried = [(row, row.leak) for row in rows if row.leak is not None and row.release == release]
        if tried:
            points = [_point("as it is", leak)] if leak is not None else []
            points += [_point(row.short, still) for row, still in tried]
            title = f"What stops the leak of {release}"
            charts.append(Chart(title, "fix", "share of records", {"recovered": points}))
    return charts


def _point(name: str, leak: Rate) -> Point:
    return Point(name, leak.share, leak.low, leak.high)
