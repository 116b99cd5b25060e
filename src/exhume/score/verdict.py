"""The verdict, in words: leaks, no leak found, or not audited. Silence is never shown as safety."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Verdict", "judge", "not_audited"]


@dataclass(frozen=True)
class Verdict:
    word: Literal["leaks", "no leak found", "not audited"]
    sentence: str
    detail: str


def judge(
    *,
    successes: int,
    targets: int,
    low: float,
    null_successes: int,
    null_high: float,
    detectable: float,
) -> Verdict:
    """Leaks, if the success rate's exact lower limit is above the null's exact upper limit (both 95%)."""
    share = f"{successes} of {targets} records ({successes / targets:.0%})"
    null = f"the same reconstructions matched {null_successes} of {targets} unrelated records"
    if low > null_high:
        return Verdict(
            "leaks",
            f"The release leaks: {share} came back closer to the truth than any record the adversary "
            "already held.",
            f"By chance alone, {null}; the success rate is at least {low:.1%} with 97.5% confidence, "
            f"chance explains at most {null_high:.1%}.",
        )
    return Verdict(
        "no leak found",
        f"No leak found: {share} came back closer to the truth than any record the adversary already "
        "held, no more than chance explains.",
        f"In comparison, {null}. A leak of {detectable:.1%} of the records or more would have been "
        "noticed with 95% probability; a smaller leak, or another attack, is not ruled out.",
    )


def not_audited(why: str) -> Verdict:
    return Verdict(
        "not audited",
        f"Not audited: {why}.",
        "Nothing was attacked, so nothing is known about what this release leaks.",
    )
