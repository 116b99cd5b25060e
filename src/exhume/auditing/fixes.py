"""What stops a leak: defences that apply, each put to the same attack, with what it costs.

A fix is judged by an adversary who knows of it: private training and rounded weights are attacked with
shadow models that are trained that way, too. What only keeps something secret is at risk at best.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from exhume.auditing.attack import attack_case
from exhume.auditing.case import Fix, Row, Safer, rows_of
from exhume.auditing.judge import word_of_fix
from exhume.core.contract import ExhumeError, Progress
from exhume.core.notation import duration_of
from exhume.core.results import Chart, FixRow, Point, Rate, Section, strongest
from exhume.report.folder import RunFolder


def try_fixes(
    fixes: Sequence[Fix],
    before: Mapping[str, Rate | None],
    left: float | None,
    folder: RunFolder,
    progress: Progress,
    *,
    tests: int,
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
            safer = fix.apply(folder, progress)
            tried = [r for r in rows_of(safer.case) if _is_tried(fix, r)]
            found = attack_case(safer.case, tried, folder.store(), progress, tests=tests)
        except ExhumeError as why:
            rows.append(replace(row, outcome=f"not tried: {why}"))
            continue
        left = None if left is None else left - fix.seconds
        word = word_of_fix(found, before[fix.release], secret=fix.secret)
        best = strongest([one.section for one in found if one.section.counts])
        rows.append(
            replace(
                row,
                tried=True,
                outcome=_outcome(fix, safer, best, word),
                leak=best.leak if best else None,
                verdict=word,
                measure=fix.measure,
                kept=safer.kept,
                before=safer.before,
                seconds=time.perf_counter() - started,
            )
        )
    progress("trying fixes", len(fixes), len(fixes))
    return sorted(rows, key=_rank)


def _is_tried(fix: Fix, row: Row) -> bool:
    named = not fix.only or row.id in fix.only
    return named and row.tested and not row.why_not and row.when != "extra"


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


def _outcome(fix: Fix, safer: Safer, best: Section | None, word: str) -> str:
    words = "no attack applies to it any more, so that nothing is known"
    if best is not None and best.leak is not None:
        words = f"{best.leak.successes} of {best.leak.trials} records recovered"
        words += f" by the strongest attacker ({best.spec.name})" if len(fix.only) != 1 else ""
        words += _ADDED.get(word, "")
    if safer.kept is None or safer.before is None:
        return words
    cost = f"; {safer.cost}" if safer.cost else ""
    return f"{words}, {fix.measure} {100 * safer.before:.1f} → {100 * safer.kept:.1f}{cost}"


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
