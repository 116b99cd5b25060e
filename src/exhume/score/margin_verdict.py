"""The verdict on weights from which whole training images were sought: in words, against the decoys."""

from __future__ import annotations

from collections.abc import Mapping

from exhume.score.intervals import detectable_rate
from exhume.score.margin import GOOD
from exhume.score.verdict import Verdict, not_audited

__all__ = ["judge_margin", "margin_detectable", "unscored"]


def margin_detectable(metrics: Mapping[str, float]) -> float:
    """The smallest share of good reconstructions that would be told from the decoys' 95 times in 100."""
    return detectable_rate(int(metrics["records"]), metrics["decoy_rate_high"])


def judge_margin(metrics: Mapping[str, float]) -> Verdict:
    """Leaks, if the lower limit of the members' share is above the upper limit of the decoys' (95% each).

    metrics: those of `score_margin`.
    """
    good, records = int(metrics["good"]), int(metrics["records"])
    decoys = int(metrics["decoys"])
    lucky = round(metrics["decoy_rate"] * decoys)
    detectable = margin_detectable(metrics)
    if detectable >= 1:
        return not_audited(
            f"the test has no power: {lucky} of {decoys} decoys matched, so that even {records} of "
            f"{records} training images would prove nothing; use more decoys or records"
        )
    share = f"{good} of {records} training images ({good / records:.0%})"
    null = f"Of {decoys} images that were not trained on, {lucky} matched a reconstruction as well"
    if metrics["good_share_low"] > metrics["decoy_rate_high"]:
        return Verdict(
            "leaks",
            f"The release leaks: {share} came back from the weights alone, with a structural similarity "
            f"above {GOOD:g}.",
            f"{null}; the share is at least {metrics['good_share_low']:.1%} with 97.5% confidence, chance "
            f"explains at most {metrics['decoy_rate_high']:.1%}.",
        )
    return Verdict(
        "no leak found",
        f"No leak found: {share} came back with a structural similarity above {GOOD:g}, not "
        "significantly more than chance explains.",
        f"{null}. A leak of {detectable:.1%} of the images or more would have been noticed with 95% "
        "probability; a smaller leak, or another attack, is not ruled out.",
    )


def unscored(candidates: int, agreed: int) -> Verdict:
    """The attack ran, but nobody said what the truth is."""
    return Verdict(
        "not audited",
        f"Not audited: {candidates} images were reconstructed, {agreed} of them by more than one restart "
        "alike, but without the training records nothing could be scored.",
        "Whether they are training images is for the owner to see: the page shows them, surest first. "
        "Give the training records, and others that were not trained on, to have them scored.",
    )
