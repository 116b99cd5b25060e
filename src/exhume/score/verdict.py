"""The verdict, in words: leaks, at risk, no leak found, or not audited. Silence is never shown as safety."""

from __future__ import annotations

from collections.abc import Sequence

from exhume.results import Verdict

__all__ = ["Verdict", "at_risk", "broken", "gravest", "judge", "not_audited"]


def judge(
    *,
    successes: int,
    targets: int,
    low: float,
    null_successes: int,
    null_high: float,
    detectable: float,
    null_targets: int | None = None,
) -> Verdict:
    """Leaks, if the success rate's exact lower limit is above the null's exact upper limit (both 95%).

    A test that could not have noticed even a leak of every record audits nothing, and says so.
    null_targets: how many unrelated records were tried; None: as many as targets.
    """
    tried = targets if null_targets is None else null_targets
    if not targets:
        return not_audited("the adversary already held a copy of every target, so nothing can leak")
    if detectable >= 1:
        return not_audited(
            f"the test has no power: {successes} of {targets} records came back closer than any held "
            f"record, but so did {null_successes} of {tried} unrelated ones; use more targets, or "
            "records that differ more from each other"
        )
    share = f"{successes} of {targets} records ({successes / targets:.0%})"
    null = f"the same reconstructions matched {null_successes} of {tried} unrelated records"
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
        "held, not significantly more than chance explains.",
        f"In comparison, {null}. A leak of {detectable:.1%} of the records or more would have been "
        "noticed with 95% probability; a smaller leak, or another attack, is not ruled out.",
    )


def gravest(verdicts: Sequence[Verdict]) -> Verdict:
    """One attack that succeeds is enough; one that could not run says nothing."""
    order = ("leaks", "at risk", "no leak found", "not audited")
    return min(verdicts, key=lambda verdict: order.index(verdict.word))


def at_risk(sentence: str, detail: str) -> Verdict:
    """The adversary that was assumed gets nothing; one with the same release and more knowledge does."""
    return Verdict("at risk", sentence, detail)


def broken(alarm: str) -> Verdict:
    """An attack did better than the stated privacy allows any attack."""
    return Verdict("leaks", "The stated privacy does not hold.", alarm)


def not_audited(why: str) -> Verdict:
    return Verdict(
        "not audited",
        f"Not audited: {why}.",
        "Nothing is known about what this release leaks.",
    )
