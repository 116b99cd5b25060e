"""How many private inputs can be recognised in what came back from their features: a figure, no verdict.

An input counts as recognised if the SSIM with its reconstruction, brightness and contrast fitted, is above a
bar: what 99% of strangers reach (the same reconstructions against other inputs), and 99% of the inputs with
the mean image. Where inputs are alike, strangers are similar too and set a high bar.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Reconstruction, Secret
from exhume.score.features import Distance, score_constant, score_inputs
from exhume.score.intervals import clopper_pearson
from exhume.score.pixels import affine_fitted, mse
from exhume.score.structure import ssim

__all__ = ["Recognised", "recognise"]

_SHIFTS = 5  # strangers that each reconstruction is compared with
_BAR = 0.99


@dataclass(frozen=True, eq=False)
class Recognised:
    """One attack on what one client sent, scored."""

    metrics: dict[str, float]
    evidence: dict[str, Tensor]  # records and numbers for each, for the owner's eyes


def recognise(
    secret: Secret, found: Reconstruction, mean: Tensor, *, distance: Distance | None
) -> Recognised:
    """Score reconstructions of n inputs. Opens the secret.

    mean: (*shape) the mean of the attacker's own records.
    """
    truth = secret.open()
    scores = score_inputs(secret, found, distance)
    null = score_constant(secret, mean, distance)
    own = scores.each["affine_ssim"]
    strangers, strangers_mse = _strangers(scores.reconstructions, truth.inputs)
    bar = max(_quantile(strangers), _quantile(null.each["affine_ssim"]))
    above, lucky = int((own > bar).sum()), int((strangers > bar).sum())
    low, high = clopper_pearson(above, len(own))
    metrics = {
        "targets": float(len(own)),
        "recognised": float(above),
        "recognised_share": above / len(own),
        "recognised_share_low": low,
        "recognised_share_high": high,
        "stranger_share": lucky / max(1, len(strangers)),
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
    return Recognised(metrics, evidence)


def _strangers(found: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """SSIM of reconstructions with other inputs, each fitted; squared error with the first of them."""
    shifts = range(1, min(_SHIFTS, len(truth) - 1) + 1)
    others = [truth.roll(shift, 0) for shift in shifts]
    if not others:
        return torch.zeros(0).double(), torch.zeros(len(truth)).double()
    return torch.cat([ssim(affine_fitted(found, o), o) for o in others]), mse(found, others[0])


def _quantile(values: Tensor) -> float:
    return float(torch.quantile(values, _BAR, interpolation="higher")) if len(values) else 1.0
