"""What stops a leak: defences that apply, each put to the same attack, with what it costs.

A fix is judged by an adversary who knows of it: private training and rounded weights are attacked with
shadow models that are trained that way, too. What only keeps something secret is at risk at best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from exhume.auditing.judging import word_of_fix
from exhume.core.contract import ExhumeError, Progress
from exhume.core.notation import duration_of
from exhume.core.results import Chart, Findings, FixRow, Point, Rate
from exhume.report.folder import RunFolder

__all__ = ["Fix", "Tried", "fix_charts", "try_fixes"]


@dataclass(frozen=True)
class Tried:
    """A fix, and what the attack still brought back."""

    found: Sequence[Findings]  # of every attack
    leak: Rate | None  # of the strongest; None: none applies any more
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
    secret: bool = False  # it protects by what nobody may learn


def try_fixes(
    fixes: Sequence[Fix],
    before: Mapping[str, Rate | None],
    left: float | None,
    folder: RunFolder,
    progress: Progress,
) -> list[FixRow]:
    """Best first. before: what leaks without, by release. left: seconds of the budget; None: no limit."""
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
        word = word_of_fix(tried.found, before[fix.release], secret=fix.secret)
        rows.append(
            replace(
                row,
                tried=True,
                outcome=_outcome(fix, tried, word),
                leak=tried.leak,
                verdict=word,
                measure=fix.measure,
                kept=tried.kept,
                before=tried.before,
                seconds=time.perf_counter() - started,
            )
        )
    progress("trying fixes", len(fixes), len(fixes))
    return sorted(rows, key=_rank)


def _rank(row: FixRow) -> tuple[bool, int, float, float]:
    """Those that stop the leak first, among these the cheapest; then secrets; then by what still leaks."""
    if row.leak is None:
        return True, 0, 1.0, 0.0
    lost = (row.before or 0.0) - (row.kept or 0.0)
    order = {"no leak found": 0, "at risk": 1}
    share = 0.0 if row.verdict in order else row.leak.share
    return False, order.get(row.verdict, 2), share, lost


_ADDED = {
    "at risk": ", as long as nobody learns what is kept secret",
    "not audited": ", which does not show that it helps",
}


def _outcome(fix: Fix, tried: Tried, word: str) -> str:
    words = "no attack applies to it any more, so that nothing is known"
    if tried.leak is not None:
        words = f"{tried.leak.successes} of {tried.leak.trials} records recovered"
        words += f" by the strongest attacker ({tried.by})" if tried.by else ""
        words += _ADDED.get(word, "")
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
