"""Score a pool of candidates against all training records: the best match of each, and decoys as the null.

Each decoy, a record of the same classes that was not trained on, is given the same choice among the same
candidates, so that luck and matching count for both.

Images: the candidate of largest normalised cross-correlation, then their SSIM; above 0.4 counts as good
(Buzaglo23). Vectors (rows of a table, embeddings of a frozen backbone): the cosine of what differs from the
pool's mean, with columns scaled by the pool's spread: the length of a vector is what weights determine worst.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Reconstruction, Records, Secret
from exhume.core.results import Rate
from exhume.score.intervals import auc, clopper_pearson, detectable_rate, rate_of, share_metrics
from exhume.score.measures import directions, mse, ssim

GOOD = 0.4  # SSIM above which a reconstruction counts as good (Buzaglo23, App. A)
_FALSE_POSITIVES = 0.01
_CONSTANT = 1e-6  # of the largest spread: a column that does not vary tells nobody apart


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
    good = int(members.good.sum())
    threshold = _threshold(others.ssim)
    metrics = {
        "good": float(good),
        **share_metrics("good_share", good, len(truth)),
        "records": float(len(truth)),
        "candidates": float(len(candidates)),
        "decoys": float(len(decoys)),
        **share_metrics("decoy_rate", int(others.good.sum()), len(decoys)),
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
        "mse": mse(candidates[members.index], truth.inputs),
    }
    return MarginScores(members, others, metrics, evidence)


def _threshold(decoys: Tensor) -> float:
    """What at most 1% of the decoys exceed, of (d,) similarities."""
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
        **share_metrics("above_bar_share", above, records),
        "detectable_rate": detectable,
    }
    return metrics, leak


# Vectors


def alike_vectors(candidates: Tensor, pool: Tensor) -> Tensor:
    """(k, d) and (n, d) to (k, n), larger is more alike; scaled by the second."""
    middle, scale = _scale(pool)
    return _units(candidates, middle, scale) @ _units(pool, middle, scale).T


def _scale(pool: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (d,) and one over the spread (d,), 0 for columns that do not vary."""
    flat = pool.double()
    spread = flat.std(0) if len(flat) > 1 else torch.ones_like(flat[0])
    varies = spread > _CONSTANT * spread.max()
    return flat.mean(0), varies / spread.clamp_min(1e-300)


def _units(vectors: Tensor, middle: Tensor, scale: Tensor) -> Tensor:
    standard = (vectors.double() - middle) * scale
    return torch.nn.functional.normalize(standard, dim=1)


@dataclass(frozen=True, eq=False)
class VectorScores:
    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # the records themselves, for their owner's eyes only
    nearest: Tensor  # (n,) the decoy most like each answer


def score_vectors(secret: Secret, found: Reconstruction, decoys: Records) -> VectorScores:
    """Compare the candidates of the first release with its training records. Opens the secret."""
    truth, candidates = secret.open(), found.found()
    if not len(candidates):
        raise ExhumeError("reconstruction: no candidates to match")
    middle, scale = _scale(torch.cat([truth.inputs, decoys.inputs]))
    pool = _units(candidates, middle, scale)
    members = (_units(truth.inputs, middle, scale) @ pool.T).max(1)
    strangers = _units(decoys.inputs, middle, scale)
    others = (strangers @ pool.T).max(1).values
    bar = _threshold(others)
    above = int((members.values > bar).sum())
    answers = candidates[members.indices]
    nearest = (pool[members.indices] @ strangers.T).argmax(1)
    metrics = {
        "records": float(len(truth)),
        "candidates": float(len(candidates)),
        "decoys": float(len(decoys)),
        "cosine_median": float(members.values.median()),
        "cosine_bar": bar,
        "above_cosine_bar": float(above),
        **share_metrics("above_cosine_bar_share", above, len(truth)),
        "cosine_auc": float(auc(members.values, others)),
    }
    evidence = {
        "targets": truth.inputs,
        "reconstructions": answers.to(truth.inputs),
        "nearest": decoys.inputs[nearest],
        "labels": truth.labels,
        "cosine": members.values,
        "confidence": found.confidence[0][found.real[0]][members.indices],
    }
    return VectorScores(metrics, evidence, nearest)
