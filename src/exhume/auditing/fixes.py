"""What stops a leak: defences that apply, each put to the same attack, with what it costs.

A fix is judged by an adversary who knows of it: private training and rounded weights are attacked with
shadow models that are trained that way, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exhume.auditing.plan import duration_of
from exhume.contract import ExhumeError, Progress
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder

__all__ = ["Fix", "Tried", "chart_of", "try_fixes"]


@dataclass(frozen=True)
class Tried:
    """A fix, and what the attack still brought back."""

    successes: int
    targets: int
    verdict: str
    kept: float | None  # accuracy of the model, or how much of an update stays
    before: float | None


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
) -> list[dict[str, Any]]:
    """Rows for result.json, best first. left: seconds of the budget; None: no limit."""
    rows: list[dict[str, Any]] = []
    for place, fix in enumerate(fixes):
        progress("trying fixes", place, len(fixes))
        row: dict[str, Any] = {
            "id": fix.id,
            "release": fix.release,
            "words": fix.words,
            "short": fix.short or fix.words,
            "guarantee": fix.guarantee,
        }
        if left is not None and fix.seconds > left:
            why = f"not tried: about {duration_of(fix.seconds)}, {duration_of(max(left, 0))} left"
            rows.append({**row, "tried": False, "outcome": why, "sentence": f"{fix.words}: {why}."})
            continue
        started = time.perf_counter()
        try:
            tried = fix.run(folder, progress)
        except ExhumeError as why:
            told = f"not tried: {why}"
            rows.append(
                {**row, "tried": False, "outcome": told, "sentence": f"{fix.words}: {told}."}
            )
            continue
        left = None if left is None else left - fix.seconds
        rows.append(
            {
                **row,
                "tried": True,
                "success": tried.successes / max(1, tried.targets),
                "successes": tried.successes,
                "targets": tried.targets,
                "verdict": tried.verdict,
                "measure": fix.measure,
                "kept": tried.kept,
                "before": tried.before,
                "outcome": _outcome(fix, tried),
                "sentence": f"{fix.words}: {_outcome(fix, tried)}.",
                "seconds": time.perf_counter() - started,
            }
        )
    progress("trying fixes", len(fixes), len(fixes))
    return sorted(rows, key=_rank)


def _rank(row: dict[str, Any]) -> tuple[bool, bool, float, float]:
    """Those that stop the leak first, among these the cheapest; then by what still leaks."""
    if not row["tried"]:
        return True, True, 1.0, 0.0
    lost = (row["before"] or 0.0) - (row["kept"] or 0.0)
    stopped = row["verdict"] == "no leak found"
    return False, not stopped, 0.0 if stopped else row["success"], lost


def _outcome(fix: Fix, tried: Tried) -> str:
    words = f"{tried.successes} of {tried.targets} records recovered"
    if tried.kept is None or tried.before is None:
        return words
    return f"{words}, {fix.measure} {100 * tried.before:.1f} → {100 * tried.kept:.1f}"


def chart_of(rows: Sequence[dict[str, Any]], before: Mapping[str, float]) -> list[Chart]:
    """What still leaks under each fix, a chart for each release. before: by release, without any fix."""
    charts = []
    for release, share in before.items():
        tried = [row for row in rows if row["tried"] and row["release"] == release]
        points = [Point("as it is", share)] + [Point(row["short"], row["success"]) for row in tried]
        if tried:
            title = f"What stops the leak of {release}"
            charts.append(Chart(title, "fix", "share of records", {"recovered": points}))
    return charts
