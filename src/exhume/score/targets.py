"""Score one reconstruction per secret record: errors, success against the oracle, and the null.

Also whether the right record is named among known candidates: the 0-1 loss of the prior-aware game.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Reconstruction, Records, Secret
from exhume.core.results import Rate
from exhume.score.copies import practically_held
from exhume.score.intervals import rate_of, success_rates
from exhume.score.measures import Errors, measure, mse, nearest


@dataclass(frozen=True, eq=False)
class TargetScores:
    attack: Errors
    oracle: Errors
    baselines: dict[str, Errors]
    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # the records themselves, for their owner's eyes only
    leak: Rate | None = None  # closer than anything held; None: a copy of every target was held

    @property
    def beside(self) -> tuple[dict[str, str | float], ...]:
        """What baselines and the oracle reach, for the page."""
        measured = {name: errors.means() for name, errors in self.baselines.items()}
        measured["nearest-neighbour oracle (knows the truth)"] = self.oracle.means()
        return tuple({"name": name, **values} for name, values in measured.items())


def first_answers(found: Reconstruction, records: int) -> Tensor:
    """(t, *shape) the first candidate of each release; refused unless every record has one."""
    releases, candidates = found.candidates.shape[:2]
    if releases != records or candidates < 1:
        raise ExhumeError(
            f"reconstruction: {candidates} candidates for each of {releases} releases do not answer "
            f"{records} records"
        )
    return found.candidates[:, 0]


def unrelated(labels: Tensor, key: Key) -> Tensor:
    """(t,) a derangement: for each target another one, of the same label where there is one.

    The same label makes the null demanding: an attack that only draws a typical member of the class
    does as well on an unrelated record as on the right one.
    """
    if len(labels) < 2:
        raise ExhumeError(f"targets: {len(labels)} given, at least 2 are needed to have a null")
    order = torch.randperm(len(labels), generator=key.generator())
    partner = torch.empty_like(order)
    singles = []
    for label in torch.unique(labels).tolist():
        members = order[labels.cpu()[order] == label]
        if len(members) > 1:
            partner[members] = members.roll(1)
        else:
            singles.append(int(members[0]))
    for member in singles:
        others = [i for i in range(len(labels)) if i != member]
        partner[member] = others[member % len(others)]
    return partner


def score_targets(
    secret: Secret,
    found: Reconstruction,
    pool: Records,
    key: Key,
    *,
    baselines: Mapping[str, Reconstruction],
    own: Tensor | None = None,
) -> TargetScores:
    """Compare the first candidate of each release with its record. Opens the secret.

    own: (t,) where the pool holds the records themselves, their places in it; these do not count.
    """
    truth = secret.open()
    best = first_answers(found, len(truth))
    attack = measure(best, truth.inputs)
    index, _ = nearest(truth.inputs, pool, own)
    oracle = measure(pool.inputs[index], truth.inputs)
    null_mse = mse(best[unrelated(truth.labels, key.fold("null")).to(best.device)], truth.inputs)
    known = practically_held(truth.inputs, pool, oracle.mse, own)
    won, chance = (attack.mse < oracle.mse)[~known], (null_mse < oracle.mse)[~known]
    rates = success_rates(won, chance) if len(won) else {}
    metrics: dict[str, float] = {
        **attack.means(),
        "mae_plus_mse": float(attack.mse.mean() + attack.mae.mean()),
        "oracle_mse": float(oracle.mse.mean()),
        "null_mse": float(null_mse.mean()),
        "targets": len(truth),
        "pool": len(pool),
        "duplicates": int(known.sum()),
        **rates,
    }
    evidence = {
        "targets": truth.inputs,
        "reconstructions": best,
        "nearest": pool.inputs[index],
        "labels": truth.labels,
        "confidence": found.confidence[:, 0],
        "oracle_mse": oracle.mse,
        "null_mse": null_mse,
        **attack.named(),
    }
    if found.labels is not None:
        evidence["inferred"] = found.labels[:, 0]
        metrics["label_accuracy"] = float((found.labels[:, 0] == truth.labels).double().mean())
    measured = {name: measure(b.candidates[:, 0], truth.inputs) for name, b in baselines.items()}
    leak = None
    if len(won):
        share, power = rates["null_success"], rates["detectable_rate"]
        leak = rate_of(int(won.sum()), len(won), chance=share, detectable=power)
    return TargetScores(attack, oracle, measured, metrics, evidence, leak)


def named_rightly(secret: Secret, found: Reconstruction, candidates: Records) -> Tensor:
    """(t,) bool: the candidate nearest to the first answer is the record. Opens the secret.

    An attack that was not told the candidates may be asked as well: snapping its answer to the list is
    what an adversary who has one would do. Equal candidates count as one.
    """
    truth = secret.open().inputs.flatten(1)
    return nearest_is_right(first_answers(found, len(truth)), truth, candidates.inputs)


def nearest_is_right(answers: Tensor, truth: Tensor, candidates: Tensor) -> Tensor:
    """(t, *shape) twice and (k, *shape): (t,) bool, as above."""
    listed, wanted_rows = candidates.flatten(1), truth.flatten(1)
    _, names = torch.unique(torch.cat([listed, wanted_rows.to(listed)]), dim=0, return_inverse=True)
    own, wanted = names[: len(listed)], names[len(listed) :]
    if not bool(torch.isin(wanted, own).all()):
        raise ExhumeError("candidates: a record behind a release is not on the list")
    given = answers.flatten(1).to(listed)
    exact = "donot_use_mm_for_euclid_dist"  # a candidate's distance to itself is 0
    nearest = torch.cdist(given, listed, compute_mode=exact).argmin(1)
    right: Tensor = own[nearest] == wanted
    return right
