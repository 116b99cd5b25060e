"""Score what came back from a client's features: each input against its reconstruction, image by image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Reconstruction, Secret
from exhume.score.pixels import affine_fitted, mse, psnr
from exhume.score.structure import ssim

__all__ = ["Distance", "InputScores", "score_constant", "score_inputs"]

Distance = Callable[[Tensor, Tensor], Tensor]
"""(t, c, h, w) twice to (t,): a perceptual distance."""

_AT_ONCE = 100


@dataclass(frozen=True, eq=False)
class InputScores:
    """Every measure image by image; `affine_` ones after brightness and contrast were fitted to the truth."""

    each: Mapping[str, Tensor]  # name to (t,)
    targets: Tensor
    reconstructions: Tensor

    def metrics(self, prefix: str) -> dict[str, float]:
        return {f"{prefix}.{name}": float(values.mean()) for name, values in self.each.items()}


def score_inputs(secret: Secret, found: Reconstruction, distance: Distance | None) -> InputScores:
    """The first candidate of each release against its input. Opens the secret."""
    truth = secret.open().inputs
    if found.candidates.shape[0] != len(truth) or found.candidates.shape[1] < 1:
        raise ExhumeError(
            f"reconstruction: {found.candidates.shape[0]} releases answered, {len(truth)} inputs were sent"
        )
    return _scored(found.candidates[:, 0], truth, distance)


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
