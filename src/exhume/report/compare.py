"""Two runs side by side: what leaks more, what leaks less, and what is within noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from exhume.contract import ExhumeError
from exhume.report.result import checked, read_json
from exhume.score.intervals import clopper_pearson

__all__ = ["Change", "compare"]

Word = Literal["better", "worse", "within noise"]
_RATES = (("success", "targets"), ("above_bar_share", "records"), ("good_share", "records"))


@dataclass(frozen=True)
class Change:
    """One attack's success in both runs. Better: less leaks."""

    name: str
    word: Word
    first: float
    second: float
    low: float  # of the difference second - first, 95%
    high: float

    def sentence(self) -> str:
        gap = f"{self.low:+.1%} to {self.high:+.1%}"
        return f"{self.word}: {self.name}: {self.first:.1%} -> {self.second:.1%} ({gap})"


def compare(first: Path, second: Path) -> list[Change]:
    """Attacks that both runs have and that were scored; raises `ExhumeError` where there is none."""
    one, other = (_rates(run) for run in (first, second))
    both = [name for name in one if name in other]
    if not both:
        raise ExhumeError(
            f"{first} and {second}: no attack was run and scored in both, so there is nothing to compare"
        )
    return [_change(name, one[name], other[name]) for name in both]


def _rates(run: Path) -> dict[str, tuple[int, int]]:
    """Successes and trials of every attack that was scored."""
    result = checked(read_json(run / "result.json"), run / "result.json")
    if result["kind"] != "audit":
        raise ExhumeError(f"{run}: the run of a study; audits are compared")
    found = {}
    for attack in result["attacks"]:
        counted = _counted(attack["metrics"])
        if counted is not None:
            found[str(attack["name"])] = counted
    return found


def _counted(metrics: Mapping[str, Any]) -> tuple[int, int] | None:
    for rate, count in _RATES:
        share, trials = metrics.get(rate), metrics.get(count)
        if isinstance(share, int | float) and isinstance(trials, int | float):
            trials = int(trials) - int(metrics.get("duplicates", 0))
            return (round(share * trials), trials) if trials > 0 else None
    return None


def _change(name: str, one: tuple[int, int], other: tuple[int, int]) -> Change:
    low, high = difference(one, other)
    word: Word = "better" if high < 0 else "worse" if low > 0 else "within noise"
    return Change(name, word, one[0] / one[1], other[0] / other[1], low, high)


def difference(one: tuple[int, int], other: tuple[int, int]) -> tuple[float, float]:
    """95% interval of the second share less the first: Newcombe's, from the exact limits of each."""
    (a, b), (c, d) = one, other
    first, second = a / b, c / d
    low_1, high_1 = clopper_pearson(a, b)
    low_2, high_2 = clopper_pearson(c, d)
    gap = second - first
    return (
        gap - math.hypot(second - low_2, high_1 - first),
        gap + math.hypot(high_2 - second, first - low_1),
    )
