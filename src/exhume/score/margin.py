"""Score a pool of candidates against all training images: best match, SSIM, and decoys as the null.

For every training image the candidate of largest normalised cross-correlation, then their SSIM; above
0.4 counts as good (Buzaglo23). Each decoy, an image of the same classes that was not trained on, is
given the same choice among the same candidates, so that luck and matching count for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Reconstruction, Records, Secret
from exhume.core.results import Rate
from exhume.score.intervals import clopper_pearson, detectable_rate, rate_of
from exhume.score.membership import auc
from exhume.score.pixels import directions
from exhume.score.structure import ssim

__all__ = ["GOOD", "MarginScores", "Matches", "above_bar", "match", "score_margin"]

GOOD = 0.4  # SSIM above which a reconstruction counts as good (Buzaglo23, App. A)
_FALSE_POSITIVES = 0.01


@dataclass(frozen=True, eq=False)
class Matches:
    """The best candidate for each of t images."""

    index: Tensor  # (t,)
    correlation: Tensor  # (t,) normalised cross-correlation
    ssim: Tensor  # (t,)

    @property
    def good(self) -> Tensor:
        return self.ssim > GOOD


def match(candidates: Tensor, images: Tensor, centre: Tensor) -> Matches:
    """(k, c, h, w) candidates and (t, c, h, w) images in [0, 1]; centre (c, h, w).

    Correlation is of what differs from the centre, the mean that the victim's released preprocessing
    subtracts: otherwise every candidate would resemble every image.
    """
    if not len(candidates):
        raise ExhumeError("reconstruction: no candidates to match")
    index = torch.empty(len(images), dtype=torch.long)
    correlation = torch.empty(len(images), dtype=torch.float64)
    similarity = torch.empty(len(images), dtype=torch.float64)
    pool = _standard(candidates, centre)
    for start in range(0, len(images), 256):
        cut = slice(start, start + 256)
        best = (_standard(images[cut], centre) @ pool.T).max(1)
        index[cut], correlation[cut] = best.indices, best.values
        similarity[cut] = ssim(candidates[best.indices], images[cut])
    return Matches(index, correlation, similarity)


def _standard(images: Tensor, centre: Tensor) -> Tensor:
    return directions((images - centre).flatten(1).double())


@dataclass(frozen=True, eq=False)
class MarginScores:
    members: Matches
    decoys: Matches
    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # the records themselves, for their owner's eyes only


def score_margin(
    secret: Secret, found: Reconstruction, decoys: Records, centre: Tensor, release: int = 0
) -> MarginScores:
    """Compare the candidates of one release with its training images. Opens the secret."""
    truth = secret.open()
    candidates = found.found(release).clamp(0, 1)
    members = match(candidates, truth.inputs, centre)
    others = match(candidates, decoys.inputs, centre)
    good, lucky = int(members.good.sum()), int(others.good.sum())
    low, high = clopper_pearson(good, len(truth))
    decoy_low, decoy_high = clopper_pearson(lucky, len(decoys))
    threshold = _threshold(others.ssim)
    metrics = {
        "good": float(good),
        "good_share": good / len(truth),
        "good_share_low": low,
        "good_share_high": high,
        "records": float(len(truth)),
        "candidates": float(len(candidates)),
        "decoys": float(len(decoys)),
        "decoy_rate": lucky / len(decoys),
        "decoy_rate_low": decoy_low,
        "decoy_rate_high": decoy_high,
        "ssim_at_1pct": threshold,
        "tpr_at_1pct": float((members.ssim > threshold).double().mean()),
        "auc": float(auc(members.ssim, others.ssim)),
        "ssim_median": float(members.ssim.median()),
        "correlation_median": float(members.correlation.median()),
    }
    nearest = match(decoys.inputs, candidates[members.index], centre)  # a decoy for each answer
    evidence = {
        "targets": truth.inputs,
        "reconstructions": candidates[members.index],
        "nearest": decoys.inputs[nearest.index],
        "labels": truth.labels,
        "ssim": members.ssim,
        "correlation": members.correlation,
        "confidence": found.confidence[release][found.real[release]][members.index],
        "mse": (candidates[members.index] - truth.inputs).double().square().flatten(1).mean(1),
    }
    return MarginScores(members, others, metrics, evidence)


def _threshold(decoys: Tensor) -> float:
    """The SSIM that at most 1% of the decoys exceed."""
    allowed = int(_FALSE_POSITIVES * len(decoys))
    return float(decoys.sort(descending=True).values[allowed])


def above_bar(scores: MarginScores) -> tuple[dict[str, float], Rate]:
    """Images whose best match is above Buzaglo23's 0.4 and above what all but 1% of the decoys reach.

    Where images are alike (digits on black), strangers exceed 0.4 easily and set the bar.
    """
    bar = max(GOOD, scores.metrics["ssim_at_1pct"])
    above, records = int((scores.members.ssim > bar).sum()), len(scores.members.ssim)
    lucky, decoys = int((scores.decoys.ssim > bar).sum()), len(scores.decoys.ssim)
    detectable = detectable_rate(records, clopper_pearson(lucky, decoys)[1])
    leak = rate_of(above, records, chance=lucky / decoys, detectable=detectable)
    metrics = {
        "bar": bar,
        "above_bar": float(above),
        "above_bar_share": leak.share,
        "above_bar_share_low": leak.low,
        "above_bar_share_high": leak.high,
        "detectable_rate": detectable,
    }
    return metrics, leak
