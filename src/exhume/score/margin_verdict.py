"""The verdict on weights from which whole training images were sought: in words, against the decoys.

An image counts if the SSIM with its best match is above Buzaglo23's 0.4 and above what all but 1% of the
decoys reach. Where images are alike (digits on black), strangers exceed 0.4 easily and set the bar.
"""

from __future__ import annotations

from dataclasses import dataclass

from exhume.results import Rate, Verdict
from exhume.score.intervals import clopper_pearson, detectable_rate, rate_of
from exhume.score.margin import GOOD, MarginScores
from exhume.score.verdict import not_audited

__all__ = ["MarginJudgement", "judge_margin", "unscored"]


@dataclass(frozen=True)
class MarginJudgement:
    verdict: Verdict
    metrics: dict[str, float]
    leak: Rate


def judge_margin(scores: MarginScores) -> MarginJudgement:
    """Leaks, if the lower limit of the members' share is above the upper limit of the decoys' (95% each).

    The bar is an order statistic of the decoys; their share above it has the exact upper limit of
    Clopper and Pearson even so.
    """
    bar = max(GOOD, scores.metrics["ssim_at_1pct"])
    above, records = int((scores.members.ssim > bar).sum()), len(scores.members.ssim)
    lucky, decoys = int((scores.decoys.ssim > bar).sum()), len(scores.decoys.ssim)
    null_high = clopper_pearson(lucky, decoys)[1]
    detectable = detectable_rate(records, null_high)
    leak = rate_of(above, records, chance=lucky / decoys, detectable=detectable)
    low = leak.low
    metrics = {
        "bar": bar,
        "above_bar": float(above),
        "above_bar_share": above / records,
        "above_bar_share_low": low,
        "above_bar_share_high": leak.high,
        "detectable_rate": detectable,
    }
    if detectable >= 1:
        why = (
            f"the test has no power: {lucky} of {decoys} decoys matched, so that even {records} of "
            f"{records} training images would prove nothing; use more decoys or records"
        )
        return MarginJudgement(not_audited(why), metrics, leak)
    share = f"{above} of {records} training images ({above / records:.0%})"
    null = f"Of {decoys} images that were not trained on, {lucky} matched a reconstruction as well"
    if low > null_high:
        verdict = Verdict(
            "leaks",
            f"The release leaks: {share} came back from the weights alone, with a structural similarity "
            f"above {bar:.2g}.",
            f"{null}; the share is at least {low:.1%} with 97.5% confidence, chance explains at most "
            f"{null_high:.1%}.",
        )
    else:
        verdict = Verdict(
            "no leak found",
            f"No leak found: {share} came back with a structural similarity above {bar:.2g}, not "
            "significantly more than chance explains.",
            f"{null}. A leak of {detectable:.1%} of the images or more would have been noticed with 95% "
            "probability; a smaller leak, or another attack, is not ruled out.",
        )
    return MarginJudgement(verdict, metrics, leak)


def unscored(candidates: int, again: int) -> Verdict:
    """The attack ran, but nobody said what the truth is."""
    return Verdict(
        "not audited",
        f"Not audited: {candidates} images were reconstructed, {again} of them more than once, but without "
        "the training records nothing could be scored.",
        "Whether they are training images is for the owner to see: the page shows them, surest first. "
        "Give the training records, and others that were not trained on, to have them scored.",
    )
