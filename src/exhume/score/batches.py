"""Score whole batches: candidates matched one to one with the records, by signed cosine.

For clients' updates decoys are the null. A record counts as brought back if its candidate is closer to it
than any record the adversary may hold; each decoy, a record that no client had, is given its choice among the
same candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Reconstruction, Records, Secret
from exhume.score.copies import practically_held
from exhume.score.intervals import success_rates
from exhume.score.measures import measure, mse, nearest, psnr

RECOVERED = 0.99  # cosine from which a record counts as recovered
FEWEST_OTHERS = 10  # records besides the private ones, below which there is no null
_DECOYS, _HELD = 500, 2000  # at most


@dataclass(frozen=True, eq=False)
class BatchScores:
    cosines: Tensor  # (r, b) of each record with the candidate matched to it; 0 where there is none
    matched: Tensor  # (r, b, *shape) those candidates; zeros where there is none
    psnr: Tensor  # (r, b) dB
    sizes: Tensor  # (r,) batch size the attack found
    labels_right: Tensor  # (r, b) bool

    @property
    def errors(self) -> Tensor:
        """(r, b) distance of the unit vectors, |x/|x| - y/|y||, as Wang23's theorem bounds it."""
        return (2 - 2 * self.cosines).clamp_min(0).sqrt()

    def metrics(self) -> dict[str, float]:
        return {
            "min_cosine": float(self.cosines.min()),
            "mean_cosine": float(self.cosines.mean()),
            "recovered": float((self.cosines >= RECOVERED).double().mean()),
            "psnr": float(self.psnr.mean()),
            "batch_size_right": float((self.sizes == self.cosines.shape[1]).double().mean()),
            "label_accuracy": float(self.labels_right.double().mean()),
        }


def score_batches(
    secret: Secret,
    found: Reconstruction,
    *,
    up_to_sign: bool = False,
    through: Callable[[Tensor], Tensor] | None = None,
) -> BatchScores:
    """The secret holds (r, b, *shape), the reconstruction k candidates a release, k != b allowed.

    up_to_sign: for data and networks that do not determine the sign; the candidates are then flipped.
    through: (n, *shape) to what the attack is after in its place, such as the features of a layer.
    """
    truth = secret.open()
    if through is not None:
        flat = through(truth.inputs.flatten(0, 1))
        inputs = flat.reshape(*truth.labels.shape, *flat.shape[1:])
        truth = Records(inputs, truth.labels, truth.classes)
    r, b = truth.labels.shape
    cosines = torch.zeros(r, b, dtype=torch.float64)
    matched = torch.zeros_like(truth.inputs)
    right = torch.zeros(r, b, dtype=torch.bool)
    real = found.real
    for i in range(r):
        here = found.found(i).double()
        if not len(here):
            continue
        table = _units(truth.inputs[i].double()) @ _units(here).T
        rows, columns = linear_sum_assignment(-(table.abs() if up_to_sign else table).numpy())
        picked = table[rows, columns]
        signs = torch.where((picked < 0) & up_to_sign, -1.0, 1.0)
        cosines[i, rows] = picked * signs
        shaped = signs.reshape(-1, *([1] * len(truth.shape)))
        matched[i, rows] = (here[columns] * shaped).to(matched.dtype)
        if found.labels is not None:
            right[i, rows] = found.labels[i][real[i]][columns] == truth.labels[i, rows]
    dist = psnr(matched.flatten(0, 1), truth.inputs.flatten(0, 1)).reshape(r, b)
    return BatchScores(cosines, matched, dist, real.sum(1), right)


def _units(records: Tensor) -> Tensor:
    flat = records.flatten(1)
    norms: Tensor = flat.norm(dim=1, keepdim=True)
    return flat / norms.clamp_min(1e-300)


@dataclass(frozen=True, eq=False)
class UpdateScores:
    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # the records themselves, for their owner's eyes only


def score_updates(
    answers: Sequence[tuple[Secret, Reconstruction]], others: Records | None, key: Key
) -> UpdateScores:
    """One secret of one batch (1, b, *shape) a client, and the candidates (1, k, *shape) found for it.

    others: records of the same kind that no client had; half of them serve as decoys, the others are what
    an adversary may hold. Without them there is no rate.
    """
    if not answers:
        raise ExhumeError("answers: there is nothing to score")
    opened = [secret.open() for secret, _ in answers]
    scores = [score_batches(secret, found) for secret, found in answers]
    truth = torch.cat([records.inputs[0] for records in opened])
    matched = torch.cat([score.matched[0] for score in scores])  # zeros where there is none
    cosines = torch.cat([score.cosines[0] for score in scores])
    pool = torch.cat([found.found().double() for _, found in answers])
    errors = measure(matched, truth)
    metrics = {
        "targets": float(len(truth)),
        "candidates": float(len(pool)),
        "recovered": float((cosines >= RECOVERED).double().mean()),
        "mean_cosine": float(cosines.mean()),
        "min_cosine": float(cosines.min()),
        **errors.means(),
    }
    if all(f.labels is not None and bool((f.labels >= 0).all()) for _, f in answers):
        right = torch.cat([score.labels_right[0] for score in scores])
        metrics["label_accuracy"] = float(right.double().mean())
    evidence = {
        "targets": truth,
        "reconstructions": matched,
        "labels": torch.cat([records.labels[0] for records in opened]),
        **errors.named(),
    }
    if others is None or len(others) < FEWEST_OTHERS:
        return UpdateScores(metrics, evidence)
    held, decoys = split_decoys(others, key)
    index, bar = nearest(truth, held)
    known = practically_held(truth, held, bar)
    won = ((errors.mse < bar) & (cosines != 0))[~known]
    metrics |= {
        "oracle_mse": float(bar.mean()),
        "pool": float(len(held)),
        "duplicates": float(known.sum()),
        **against_decoys(won, _chance(pool, held, decoys)),
    }
    oracle = {"nearest": held.inputs[index].to(truth), "oracle_mse": bar}
    return UpdateScores(metrics, evidence | oracle)


def split_decoys(others: Records, key: Key) -> tuple[Records, Records]:
    """What an adversary may hold, and decoys; disjoint."""
    order = torch.randperm(len(others), generator=key.fold("decoys").generator())
    count = min(_DECOYS, len(others) // 2)
    return others[order[count : count + _HELD]], others[order[:count]]


def against_decoys(won: Tensor, lucky: Tensor) -> dict[str, float]:
    """won: (t,) which records came back; lucky: (d,) which decoys did, by chance."""
    return {"decoys": float(len(lucky)), **success_rates(won, lucky)}


def _chance(candidates: Tensor, held: Records, decoys: Records) -> Tensor:
    """(n,) bool: decoys that some candidate is closer to than any held record."""
    if not len(candidates):
        return torch.zeros(len(decoys), dtype=torch.bool)
    _, bar = nearest(decoys.inputs, held)
    apart = torch.cdist(decoys.inputs.flatten(1).double(), candidates.flatten(1).double())
    best = candidates[apart.argmin(1)].reshape(len(decoys), *decoys.shape)
    return mse(best, decoys.inputs) < bar
