"""Two runs side by side: what leaks more, what leaks less, and what is within noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exhume.core.contract import ExhumeError
from exhume.core.results import Rate, Result, read_result

__all__ = ["Change", "compare"]

Word = Literal["better", "worse", "within noise"]


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
    both = [attack for attack in one if attack in other]
    if not both:
        raise ExhumeError(
            f"{first} and {second}: no attack was run and scored in both, so there is nothing to compare"
        )
    return [_change(attack[1], one[attack], other[attack]) for attack in both]


def _rates(run: Path) -> dict[tuple[str, str], Rate]:
    """What every attack brought back, by release and name."""
    result = read_result(run / "result.json")
    if not isinstance(result, Result):
        raise ExhumeError(f"{run}: the run of a study; audits are compared")
    return {
        (attack.release, attack.spec.name): attack.leak
        for attack in result.attacks
        if attack.leak is not None and attack.leak.trials
    }


def _change(name: str, one: Rate, other: Rate) -> Change:
    low, high = difference(one, other)
    word: Word = "better" if high < 0 else "worse" if low > 0 else "within noise"
    return Change(name, word, one.share, other.share, low, high)


def difference(one: Rate, other: Rate) -> tuple[float, float]:
    """95% interval of the second share less the first: Newcombe's, from the exact limits of each."""
    gap = other.share - one.share
    return (
        gap - math.hypot(other.share - other.low, one.high - one.share),
        gap + math.hypot(other.high - other.share, one.share - one.low),
    )
