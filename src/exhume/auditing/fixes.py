"""What stops a leak: defences that apply, each put to the same attacks, with what it costs.

A fix is a case, judged like any other: by rows, line-ups and controls of its own. It is tried on new
targets with new random numbers, as those of the audit were seen to leak; the system without it is attacked
on the same new targets. The word "no leak found" needs both: silence that is shown to say something, and a
drop, target by target, beyond chance.

A fix is judged by an adversary who knows of it: private training and rounded weights are attacked with
shadow models that are trained that way, too. What only keeps something secret is at risk at best.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.stats import binom
from torch import Tensor

from exhume.auditing.attack import attack_case
from exhume.auditing.case import Case, Fix, Row, Safer, rows_of
from exhume.auditing.judge import holm_adjust, judge_releases
from exhume.auditing.plan import stopped
from exhume.core.contract import ExhumeError, Progress
from exhume.core.errors import STOPPED
from exhume.core.notation import duration_of
from exhume.core.results import Chart, Findings, FixRow, Point, Rate, Section, Word
from exhume.report.folder import RunFolder
from exhume.score.lineup import LEVEL
from exhume.score.verdict import MOST_UNNOTICED, silent


def try_fixes(
    leaking: Mapping[str, Case],
    left: float | None,
    folder: RunFolder,
    progress: Progress,
    *,
    tests: int,
) -> list[FixRow]:
    """Best first. leaking: cases by name. left: seconds of the budget; None: no limit."""
    rows: list[FixRow] = []
    for name, case in leaking.items():
        try:
            again = case.redealt().made(folder, progress)
        except STOPPED as why:
            said = stopped(progress, why)
            rows += [_cut(replace(fix, release=name), said) for fix in case.fixes()]
            continue
        fixes = [replace(fix, release=name) for fix in again.fixes()]
        asked = [row for row in rows_of(again) if any(_is_tried(fix, row) for fix in fixes)]
        needed = sum(row.seconds for row in asked)
        fitting = [fix for fix in fixes if left is None or needed + fix.seconds <= left]
        rows += [_untried(fix, needed, left or 0.0) for fix in fixes if fix not in fitting]
        if not fitting:
            continue
        asked = [row for row in asked if any(_is_tried(fix, row) for fix in fitting)]
        found = attack_case(again, asked, folder.store(), progress, tests=tests)
        before = strongest_of(holm_adjust(found, 0))
        left = None if left is None else left - needed
        for fix in fitting:
            if left is not None and fix.seconds > left:
                rows.append(_untried(fix, 0.0, left))
                continue
            rows.append(_try(fix, before, left, folder, progress, tests=tests))
            left = None if left is None else left - fix.seconds
    return sorted(rows, key=_rank)


def _row(fix: Fix, outcome: str) -> FixRow:
    return FixRow(fix.id, fix.release, fix.words, fix.short or fix.words, fix.guarantee, outcome)


def _untried(fix: Fix, more: float, left: float) -> FixRow:
    takes, there = duration_of(fix.seconds + more), duration_of(max(left, 0))
    return _row(fix, f"not tried: about {takes}, {there} left")


def _cut(fix: Fix, why: str) -> FixRow:
    return _row(fix, f"not tried: it takes about {duration_of(fix.seconds)}, and {why}")


def _try(
    fix: Fix,
    before: Findings | None,
    left: float | None,
    folder: RunFolder,
    progress: Progress,
    *,
    tests: int,
) -> FixRow:
    started = time.perf_counter()
    try:
        progress(f"fix: {fix.short or fix.words}", 0, 1)
        safer = fix.apply(folder, progress)
        tried = [row for row in rows_of(safer.case) if _is_tried(fix, row)]
        found = attack_case(safer.case, tried, folder.store(), progress, tests=tests)
    except STOPPED as why:
        return _cut(fix, stopped(progress, why))
    except ExhumeError as why:
        return _row(fix, f"not tried: {why}")
    found = [replace(f, section=replace(f.section, release=fix.release)) for f in found]
    judged = judge_releases(
        holm_adjust(found, 0),
        {fix.release: () if fix.secret else safer.case.ladders()},
        (),
        tests=tests,
        seconds=None if left is None else max(0.0, left - fix.seconds),
        folder=folder,
        progress=progress,
    )
    after = strongest_of(judged.found)
    verdict = judged.verdicts[fix.release]
    word, short = _word(fix, verdict.word, before, after)
    outcome = _outcome(fix, safer, before, after, word=word, why=short or verdict.sentence)
    return replace(
        _row(fix, outcome),
        tried=True,
        leak=after.section.leak if after else None,
        without=before.section.leak if before else None,
        verdict=word,
        measure=fix.measure,
        kept=safer.kept,
        before=safer.before,
        seconds=time.perf_counter() - started,
    )


def strongest_of(found: Sequence[Findings]) -> Findings | None:
    """The attack that found most, among those that decide and apply."""
    counted = [one for one in found if one.counts and one.section.leak is not None]
    return max(counted, key=lambda one: one.share, default=None)


def _word(
    fix: Fix, word: Word, before: Findings | None, after: Findings | None
) -> tuple[Word, str]:
    """What is said of a fix, and why it is no more than that."""
    if word in ("leaks", "at risk"):
        return word, ""
    hidden = fix.secret and after is not None and silent(after.section)
    if word == "not audited" and not hidden:
        return word, ""
    drop = drop_of(before, after)
    if not drop.shown:
        return "not audited", drop.why
    return ("at risk" if fix.secret else "no leak found"), ""


# A drop, target by target


@dataclass(frozen=True)
class Drop:
    """Whether less is identified under a fix than without it, on the same targets."""

    shown: bool
    why: str = ""


def drop_of(before: Findings | None, after: Findings | None) -> Drop:
    """By the exact test of those targets alone that only one of the two identifies (McNemar).

    The attack must also be strong enough under the fix for half of what leaked without it to be noticed.
    """
    if before is None or before.section.leak is None or after is None:
        return Drop(False, "nothing was lined up to compare it with")
    lineup, leaked = after.section.lineup, before.section.leak
    ranks = [found.evidence.get("rank") for found in (before, after)]
    if lineup is None or ranks[0] is None or ranks[1] is None or len(ranks[0]) != len(ranks[1]):
        return Drop(False, "nothing was lined up to compare it with")
    if p_of_drop(ranks[0], ranks[1]) > LEVEL:
        return Drop(False, "no drop beyond chance")
    if lineup.detectable > MOST_UNNOTICED * leaked.low:
        return Drop(False, "a leak half as large would go unnoticed")
    return Drop(True)


def p_of_drop(before: Tensor, after: Tensor) -> float:
    """(t,) ranks each, 0 where a target was left out; the probability of such a drop by chance."""
    there = (before > 0) & (after > 0)
    gone = int(((before == 1) & (after != 1) & there).sum())
    came = int(((before != 1) & (after == 1) & there).sum())
    return float(binom.sf(gone - 1, gone + came, 0.5))


# Words and order


def _is_tried(fix: Fix, row: Row) -> bool:
    named = not fix.only or row.id in fix.only
    return named and row.tested and not row.why_not and row.when != "extra"


def _rank(row: FixRow) -> tuple[bool, int, bool, float, float]:
    """Those that stop the leak first, then secrets; of these the guaranteed; then by leak and cost."""
    if row.leak is None:
        return True, 0, False, 1.0, 0.0
    lost = (row.before or 0.0) - (row.kept or 0.0)
    order = {"no leak found": 0, "at risk": 1}
    share = 0.0 if row.verdict in order else row.leak.share
    promised = not row.guarantee.startswith("none")
    return False, order.get(row.verdict, 2), not promised, share, lost


def _outcome(
    fix: Fix,
    safer: Safer,
    before: Findings | None,
    after: Findings | None,
    *,
    word: str,
    why: str,
) -> str:
    words = "no attack applies to it any more, so that nothing is known"
    if after is not None:
        words = f"{_recovered(after.section)} records recovered"
        if before is not None:
            words += f", without it {_recovered(before.section)} of the same"
        words += f", by {after.section.spec.name}" if len(fix.only) != 1 else ""
        if word == "at risk" and fix.secret:
            words += ", as long as nobody learns what is kept secret"
        if word == "not audited":
            words += f", which does not show that it helps ({why.rstrip('.')})"
    if safer.kept is None or safer.before is None:
        return words
    cost = f"; {safer.cost}" if safer.cost else ""
    return f"{words}; {fix.measure} {100 * safer.before:.1f} → {100 * safer.kept:.1f}{cost}"


def _recovered(section: Section) -> str:
    assert section.leak is not None  # the strongest has one
    return f"{section.leak.successes} of {section.leak.trials}"


def fix_charts(rows: Sequence[FixRow]) -> list[Chart]:
    """What still leaks under each fix, a chart for each release."""
    charts = []
    for release in dict.fromkeys(row.release for row in rows if row.leak is not None):
        tried = [(row, row.leak) for row in rows if row.leak is not None and row.release == release]
        without = tried[0][0].without
        points = [_point("as it is", without)] if without is not None else []
        points += [_point(row.short, still) for row, still in tried]
        title = f"What stops the leak of {release}"
        charts.append(Chart(title, "fix", "share of records", {"recovered": points}))
    return charts


def _point(name: str, leak: Rate) -> Point:
    return Point(name, leak.share, leak.low, leak.high)
