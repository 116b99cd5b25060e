"""Score one reconstruction per secret record: errors, success against the oracle, and the null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Reconstruction, Records, Secret
from exhume.core.results import Rate
from exhume.score.intervals import clopper_pearson, detectable_rate, rate_of
from exhume.score.oracle import near_duplicates, nearest
from exhume.score.pixels import mae, mse, psnr
from exhume.score.structure import ssim

__all__ = ["Errors", "TargetScores", "measure", "score_targets", "unrelated"]


@dataclass(frozen=True, eq=False)
class Errors:
    """Per-target distances of one answer; those for images are None for other records."""

    mse: Tensor  # (t,) each
    mae: Tensor
    psnr: Tensor | None  # for images only, whose range is known
    ssim: Tensor | None

    def named(self) -> dict[str, Tensor]:
        named = {"mse": self.mse, "mae": self.mae, "psnr": self.psnr, "ssim": self.ssim}
        return {name: values for name, values in named.items() if values is not None}

    def means(self) -> dict[str, float]:
        return {name: float(values.mean()) for name, values in self.named().items()}


def measure(found: Tensor, truth: Tensor) -> Errors:
    """(t, *shape) twice."""
    image = truth.ndim == 4
    return Errors(
        mse(found, truth),
        mae(found, truth),
        psnr(found, truth) if image else None,
        ssim(found, truth) if image else None,
    )


@dataclass(frozen=True, eq=False)
class TargetScores:
    attack: Errors
    oracle: Errors
    baselines: dict[str, Errors]
    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # the records themselves, for their owner's eyes only
    leak: Rate | None = None  # closer than anything held; None: a copy of every target was held


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
    if found.candidates.shape[0] != len(truth) or found.candidates.shape[1] < 1:
        releases, candidates = found.candidates.shape[:2]
        raise ExhumeError(
            f"reconstruction: {candidates} candidates for each of {releases} releases do not answer "
            f"{len(truth)} records"
        )
    best = found.candidates[:, 0]
    attack = measure(best, truth.inputs)
    index, _ = nearest(truth.inputs, pool, own)
    oracle = measure(pool.inputs[index], truth.inputs)
    null_mse = mse(best[unrelated(truth.labels, key.fold("null")).to(best.device)], truth.inputs)
    known = near_duplicates(oracle.mse, pool)
    won, chance = (attack.mse < oracle.mse)[~known], (null_mse < oracle.mse)[~known]
    rates = _rates(won, chance)
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


def _rates(won: Tensor, chance: Tensor) -> dict[str, float]:
    """Success against the oracle, and by chance, over the targets the adversary did not hold already."""
    successes, lucky, trials = int(won.sum()), int(chance.sum()), len(won)
    if not trials:
        return {}
    low, high = clopper_pearson(successes, trials)
    null_low, null_high = clopper_pearson(lucky, trials)
    return {
        "success": successes / trials,
        "success_low": low,
        "success_high": high,
        "null_success": lucky / trials,
        "null_success_low": null_low,
        "null_success_high": null_high,
        "detectable_rate": detectable_rate(trials, null_high),
    }
