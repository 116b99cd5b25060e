"""What private training allows, beside what was measured: the rows of the page."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from exhume.report.figures import interval
from exhume.report.words import percent
from exhume.results import LimitRow, Limits

__all__ = ["Limit", "limits_rows"]


@dataclass(frozen=True)
class Limit:
    attack: str
    game: str
    measured: str
    range: str  # 95%
    guessing: str
    allowed: str
    figure: Markup
    alarm: bool


def limits_rows(limits: Limits | None) -> list[Limit]:
    """Nothing where training was not private."""
    return [_row(row) for row in limits.rows] if limits else []


def _row(row: LimitRow) -> Limit:
    spans = {
        "measured": (row.low, row.rate, row.high),
        "allowed": (row.kappa, row.bound, row.bound),
    }
    return Limit(
        row.attack,
        row.game,
        f"{row.successes} of {row.trials} ({percent(row.rate)})",
        f"{percent(row.low)} to {percent(row.high)}",
        percent(row.kappa),
        percent(row.bound),
        interval(spans, label=f"{row.attack}: {row.game}"),
        row.alarm,
    )
