"""How busy an image is, in four numbers. Every function: (t, c, h, w) in [0, 1] to (t,), fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError

__all__ = ["STATISTICS", "background_variance", "colourfulness", "contrast", "total_variation"]

_FRAME = 4  # pixels from the edge that count as background


def background_variance(images: Tensor) -> Tensor:
    """Variance of the pixels near the edge, mean over channels: 0 for a constant background."""
    h, w = images.shape[2:]
    if min(h, w) <= 2 * _FRAME:
        raise ExhumeError(
            f"images: {h}x{w} given, larger than {2 * _FRAME} needed for a background"
        )
    edge = torch.ones(h, w, dtype=torch.bool, device=images.device)
    edge[_FRAME:-_FRAME, _FRAME:-_FRAME] = False
    return images.double()[:, :, edge].var(2, correction=0).mean(1)


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across."""
    exact = images.double()
    return exact.diff(dim=2).abs().flatten(1).mean(1) + exact.diff(dim=3).abs().flatten(1).mean(1)


def contrast(images: Tensor) -> Tensor:
    """Standard deviation of the grey image (mean over channels)."""
    return images.double().mean(1).flatten(1).std(1, correction=0)


def colourfulness(images: Tensor) -> Tensor:
    """sigma_rg,yb + 0.3 mu_rg,yb of Hasler and Süsstrunk (2003), rg = R - G, yb = (R + G)/2 - B."""
    if images.shape[1] != 3:
        raise ExhumeError(f"images: {images.shape[1]} channels given, 3 needed for colourfulness")
    red, green, blue = images.double().flatten(2).unbind(1)
    pair = torch.stack([red - green, (red + green) / 2 - blue])  # (2, t, pixels)
    spread = pair.var(2, correction=0).sum(0).sqrt()
    return spread + 0.3 * pair.mean(2).square().sum(0).sqrt()


STATISTICS = {
    "background variance": background_variance,
    "total variation": total_variation,
    "colourfulness": colourfulness,
    "contrast": contrast,
}
