"""What private training allows, beside what was measured: the rows of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from exhume.contract import ExhumeError
from exhume.report.figures import interval
from exhume.report.words import percent

__all__ = ["Limit", "limits_in", "limits_rows"]


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


def limits_in(result: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """What the first attack that has any says about limits."""
    for attack in result["attacks"]:
        if "limits" in attack:
            if not isinstance(attack["limits"], dict):
                raise ExhumeError(f"{where}: limits must be an object")
            return attack["limits"]
    return {}


def limits_rows(limits: Mapping[str, Any], where: Path) -> list[Limit]:
    """limits: as `auditing.private` writes it; empty where training was not private."""
    try:
        return [_row(row) for row in limits.get("rows", [])]
    except (KeyError, TypeError, ValueError) as damage:
        raise ExhumeError(f"{where}: limits are not readable ({damage!r})") from None


def _row(row: Mapping[str, Any]) -> Limit:
    rate, low, high = (float(row[name]) for name in ("rate", "low", "high"))
    kappa, bound = float(row["kappa"]), float(row["bound"])
    spans = {"measured": (low, rate, high), "allowed": (kappa, bound, bound)}
    return Limit(
        str(row["attack"]),
        str(row["game"]),
        f"{int(row['successes'])} of {int(row['trials'])} ({percent(rate)})",
        f"{percent(low)} to {percent(high)}",
        percent(kappa),
        percent(bound),
        interval(spans, label=f"{row['attack']}: {row['game']}"),
        bool(row["alarm"]),
    )
