"""Score a pool of candidates against training vectors: rows of a table, embeddings of a frozen backbone.

Alike is the cosine of what differs from the pool's mean, with columns scaled by the pool's spread: the length
of a vector is what weights determine worst. Each decoy, a record that was not trained on, is given the same
choice among the same candidates, so that luck and matching count for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Reconstruction, Records, Secret
from exhume.score.intervals import rate_of
from exhume.score.membership import auc

__all__ = ["VectorScores", "alike_vectors", "score_vectors"]

_FALSE_POSITIVES = 0.01
_CONSTANT = 1e-6  # of the largest spread: a column that does not vary tells nobody apart


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
    allowed = int(_FALSE_POSITIVES * len(others))
    bar = float(others.sort(descending=True).values[allowed])
    above = rate_of(int((members.values > bar).sum()), len(truth))
    answers = candidates[members.indices]
    nearest = (pool[members.indices] @ strangers.T).argmax(1)
    metrics = {
        "records": float(len(truth)),
        "candidates": float(len(candidates)),
        "decoys": float(len(decoys)),
        "cosine_median": float(members.values.median()),
        "cosine_bar": bar,
        "above_cosine_bar": float(above.successes),
        "above_cosine_bar_share": above.share,
        "above_cosine_bar_share_low": above.low,
        "above_cosine_bar_share_high": above.high,
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
