"""How many private inputs can be recognised in what came back from their features, and the verdict in words.

An input counts as recognised if the SSIM with its reconstruction, brightness and contrast fitted, is above a
bar: what 99% of strangers reach (the same reconstructions against other inputs), and 99% of the inputs with
the mean image. Where inputs are alike, strangers are similar too and set a high bar.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.contract import Reconstruction, Secret
from exhume.results import Rate, Verdict
from exhume.score.features import Distance, score_constant, score_inputs
from exhume.score.intervals import clopper_pearson, detectable_rate, rate_of
from exhume.score.pixels import affine_fitted, mse
from exhume.score.structure import ssim
from exhume.score.verdict import not_audited

__all__ = ["Recognised", "recognise"]

_SHIFTS = 5  # strangers that each reconstruction is compared with
_BAR = 0.99


@dataclass(frozen=True, eq=False)
class Recognised:
    """One attack on what one client sent, scored."""

    verdict: Verdict
    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # records and numbers for each, for the owner's eyes
    leak: Rate


def recognise(
    secret: Secret,
    found: Reconstruction,
    mean: Tensor,
    *,
    distance: Distance | None,
    where: str,
) -> Recognised:
    """Score reconstructions of n inputs, and judge. Opens the secret.

    mean: (*shape) the mean of the attacker's own records; where: names the split in the verdict.
    """
    truth = secret.open()
    scores = score_inputs(secret, found, distance)
    null = score_constant(secret, mean, distance)
    own = scores.each["affine_ssim"]
    strangers, strangers_mse = _strangers(scores.reconstructions, truth.inputs)
    bar = max(_quantile(strangers), _quantile(null.each["affine_ssim"]))
    above, lucky = int((own > bar).sum()), int((strangers > bar).sum())
    null_high = clopper_pearson(lucky, len(strangers))[1] if len(strangers) else 1.0
    by_chance, power = lucky / max(1, len(strangers)), detectable_rate(len(own), null_high)
    leak = rate_of(above, len(own), chance=by_chance, detectable=power)
    metrics = {
        "targets": float(len(own)),
        "recognised": float(above),
        "recognised_share": above / len(own),
        "recognised_share_low": leak.low,
        "recognised_share_high": leak.high,
        "stranger_share": by_chance,
        "detectable_rate": power,
        "ssim_bar": bar,
        **{name: float(values.mean()) for name, values in scores.each.items()},
        **{f"mean_image_{name}": float(values.mean()) for name, values in null.each.items()},
    }
    evidence = {
        "targets": scores.targets,
        "reconstructions": scores.reconstructions.clamp(0, 1),
        "mse": scores.each["mse"],
        "ssim": scores.each["ssim"],
        "psnr": scores.each["psnr"],
        "null_mse": strangers_mse,
        "labels": truth.labels,
    }
    verdict = _verdict(metrics, null_high, len(strangers), where)
    return Recognised(verdict, metrics, evidence, leak)


def _strangers(found: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """SSIM of reconstructions with other inputs, each fitted; squared error with the first of them."""
    shifts = range(1, min(_SHIFTS, len(truth) - 1) + 1)
    others = [truth.roll(shift, 0) for shift in shifts]
    if not others:
        return torch.zeros(0).double(), torch.zeros(len(truth)).double()
    return torch.cat([ssim(affine_fitted(found, o), o) for o in others]), mse(found, others[0])


def _quantile(values: Tensor) -> float:
    return float(torch.quantile(values, _BAR, interpolation="higher")) if len(values) else 1.0


def _verdict(m: dict[str, float], null_high: float, strangers: int, where: str) -> Verdict:
    targets, above = int(m["targets"]), int(m["recognised"])
    if m["detectable_rate"] >= 1:
        return not_audited(
            f"the test has no power: with {targets} inputs not even all of them could be told from "
            "chance; use more"
        )
    share = f"{above} of {targets} inputs ({above / targets:.0%})"
    likeness = f"mean SSIM {m['ssim']:.2f}, after an affine fit {m['affine_ssim']:.2f}; the mean image has "
    likeness += f"{m['mean_image_affine_ssim']:.2f}"
    if m["recognised_share_low"] > null_high:
        return Verdict(
            "leaks",
            f"The split {where} leaks: {share} came back from the features, more similar to the truth "
            "than 99% of strangers are.",
            f"The share is at least {m['recognised_share_low']:.1%} with 97.5% confidence, chance explains "
            f"at most {null_high:.1%}; {likeness}.",
        )
    return Verdict(
        "no leak found",
        f"No leak found {where}: {share} came back more similar to the truth than 99% of strangers are, "
        "not significantly more than chance explains.",
        f"A share of {m['detectable_rate']:.1%} or more would have been noticed with 95% probability; a "
        f"smaller leak, or another attack, is not ruled out; {likeness} ({strangers} strangers compared).",
    )
