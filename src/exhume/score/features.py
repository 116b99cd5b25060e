"""Score what came back from a client's features: each input against its reconstruction, image by image.

How many inputs can be recognised is a figure, no verdict. An input counts as recognised if the SSIM with its
reconstruction, brightness and contrast fitted, is above a bar: what 99% of strangers reach (the same
reconstructions against other inputs), and 99% of the inputs with the mean image. Where inputs are alike,
strangers are similar too and set a high bar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Reconstruction, Secret
from exhume.score.intervals import share_metrics
from exhume.score.measures import affine_fitted, mse, psnr, ssim
from exhume.score.targets import first_answers

Distance = Callable[[Tensor, Tensor], Tensor]
"""(t, c, h, w) twice to (t,): a perceptual distance."""

_AT_ONCE = 100
_SHIFTS = 5  # strangers that each reconstruction is compared with
_BAR = 0.99


@dataclass(frozen=True, eq=False)
class InputScores:
    """Every measure image by image; `affine_` ones after brightness and contrast were fitted to the truth."""

    each: Mapping[str, Tensor]  # name to (t,)
    targets: Tensor
    reconstructions: Tensor

    def metrics(self, prefix: str) -> dict[str, float]:
        return {f"{prefix}.{name}": float(values.mean()) for name, values in self.each.items()}


def score_inputs(secret: Secret, found: Reconstruction, distance: Distance | None) -> InputScores:
    """Score the first candidate of each release against its input. Opens the secret."""
    truth = secret.open().inputs
    return _scored(first_answers(found, len(truth)), truth, distance)


def score_constant(secret: Secret, image: Tensor, distance: Distance | None) -> InputScores:
    """Score one image (c, h, w) in answer to every input: what no attack at all achieves."""
    truth = secret.open().inputs
    return _scored(image.expand_as(truth), truth, distance)


def _scored(found: Tensor, truth: Tensor, distance: Distance | None) -> InputScores:
    fitted = affine_fitted(found, truth)
    each: dict[str, Tensor] = {}
    for prefix, drawn in (("", found), ("affine_", fitted)):
        each[f"{prefix}mse"] = mse(drawn, truth)
        each[f"{prefix}psnr"] = psnr(drawn, truth)
        each[f"{prefix}ssim"] = ssim(drawn, truth)
        if distance is not None:
            each[f"{prefix}lpips"] = _apart(distance, drawn, truth)
    return InputScores(each, truth, found)


@torch.no_grad()
def _apart(distance: Distance, found: Tensor, truth: Tensor) -> Tensor:
    parts = zip(torch.split(found, _AT_ONCE), torch.split(truth, _AT_ONCE), strict=True)
    return torch.cat([distance(a.float().clamp(0, 1), b.float()).double() for a, b in parts])


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
    metrics = {
        "targets": float(len(own)),
        "recognised": float(above),
        **share_metrics("recognised_share", above, len(own)),
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
