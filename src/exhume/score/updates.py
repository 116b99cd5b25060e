"""Score what was dug out of clients' updates: records matched one to one, decoys as the null.

A record counts as brought back if its candidate is closer to it than any record the adversary may hold.
Each decoy, a record that no client had, is given its choice among the same candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Reconstruction, Records, Secret
from exhume.score.batches import RECOVERED, BatchScores, score_batches
from exhume.score.intervals import clopper_pearson, detectable_rate
from exhume.score.oracle import near_duplicates, nearest
from exhume.score.pixels import mse
from exhume.score.targets import measure

__all__ = [
    "FEWEST_OTHERS",
    "UpdateScores",
    "against_decoys",
    "dealt",
    "score_updates",
]

FEWEST_OTHERS = 10  # records besides the private ones, below which there is no null
_DECOYS, _HELD = 500, 2000  # at most


@dataclass(frozen=True, eq=False)
class UpdateScores:
    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # the records themselves, for their owner's eyes only


@dataclass(frozen=True, eq=False)
class _Answers:
    """All private records and the candidate matched to each."""

    truth: Tensor  # (t, *shape)
    labels: Tensor  # (t,)
    found: Tensor  # (t, *shape), zeros where there is none
    present: Tensor  # (t,) bool
    cosines: Tensor  # (t,)
    labels_right: Tensor  # (t,) bool
    labelled: bool  # the attack has said a label for every candidate
    pool: Tensor  # (k, *shape) every candidate


def score_updates(
    answers: Sequence[tuple[Secret, Reconstruction]], others: Records | None, key: Key
) -> UpdateScores:
    """One secret of one batch (1, b, *shape) a client, and the candidates (1, k, *shape) found for it.

    others: records of the same kind that no client had; half of them serve as decoys, the others are what
    an adversary may hold. Without them there is no rate.
    """
    all_of = _gathered(answers)
    errors = measure(all_of.found, all_of.truth)
    metrics = {
        "targets": float(len(all_of.truth)),
        "candidates": float(len(all_of.pool)),
        "recovered": float((all_of.cosines >= RECOVERED).double().mean()),
        "mean_cosine": float(all_of.cosines.mean()),
        "min_cosine": float(all_of.cosines.min()),
        **errors.means(),
    }
    if all_of.labelled:
        metrics["label_accuracy"] = float(all_of.labels_right.double().mean())
    evidence = {
        "targets": all_of.truth,
        "reconstructions": all_of.found,
        "labels": all_of.labels,
        **errors.named(),
    }
    if others is None or len(others) < FEWEST_OTHERS:
        return UpdateScores(metrics, evidence)
    held, decoys = dealt(others, key)
    index, bar = nearest(all_of.truth, held)
    rates = _rates(all_of, errors.mse, bar, held, decoys)
    oracle = {"nearest": held.inputs[index].to(all_of.truth), "oracle_mse": bar}
    metrics |= {"oracle_mse": float(bar.mean()), "pool": float(len(held)), **rates}
    return UpdateScores(metrics, evidence | oracle)


def _gathered(answers: Sequence[tuple[Secret, Reconstruction]]) -> _Answers:
    if not answers:
        raise ExhumeError("answers: there is nothing to score")
    opened = [secret.open() for secret, _ in answers]
    scores: list[BatchScores] = [score_batches(secret, found) for secret, found in answers]
    cosines = torch.cat([score.cosines[0] for score in scores])
    return _Answers(
        truth=torch.cat([truth.inputs[0] for truth in opened]),
        labels=torch.cat([truth.labels[0] for truth in opened]),
        found=torch.cat([score.matched[0] for score in scores]),
        present=cosines != 0,
        cosines=cosines,
        labels_right=torch.cat([score.labels_right[0] for score in scores]),
        labelled=all(f.labels is not None and bool((f.labels >= 0).all()) for _, f in answers),
        pool=torch.cat([found.found().double() for _, found in answers]),
    )


def dealt(others: Records, key: Key) -> tuple[Records, Records]:
    """What an adversary may hold, and decoys; disjoint."""
    order = torch.randperm(len(others), generator=key.fold("decoys").generator())
    count = min(_DECOYS, len(others) // 2)
    return others[order[count : count + _HELD]], others[order[:count]]


def _rates(
    answers: _Answers, error: Tensor, bar: Tensor, held: Records, decoys: Records
) -> dict[str, float]:
    known = near_duplicates(bar, held)
    won = ((error < bar) & answers.present)[~known]
    rates = against_decoys(won, _chance(answers.pool, held, decoys))
    return {"duplicates": float(known.sum()), **rates}


def against_decoys(won: Tensor, lucky: Tensor) -> dict[str, float]:
    """won: (t,) which records came back; lucky: (d,) which decoys did, by chance."""
    trials, successes, chance = len(won), int(won.sum()), int(lucky.sum())
    low, high = clopper_pearson(successes, trials) if trials else (0.0, 1.0)
    null_low, null_high = clopper_pearson(chance, len(lucky))
    detectable = detectable_rate(trials, null_high) if trials else 1.0
    return {
        "decoys": float(len(lucky)),
        "success": successes / trials if trials else 0.0,
        "success_low": low,
        "success_high": high,
        "null_success": chance / len(lucky),
        "null_success_low": null_low,
        "null_success_high": null_high,
        "detectable_rate": detectable,
    }


def _chance(candidates: Tensor, held: Records, decoys: Records) -> Tensor:
    """(n,) bool: decoys that some candidate is closer to than any held record."""
    if not len(candidates):
        return torch.zeros(len(decoys), dtype=torch.bool)
    _, bar = nearest(decoys.inputs, held)
    apart = torch.cdist(decoys.inputs.flatten(1).double(), candidates.flatten(1).double())
    best = candidates[apart.argmin(1)].reshape(len(decoys), *decoys.shape)
    return mse(best, decoys.inputs) < bar
