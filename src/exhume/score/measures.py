"""Measures: how far an answer is from a record, value by value, by structure, and beside what is held anyway.

(t, *shape) twice to (t,), where nothing else is said. `ssim` is of images in [0, 1], by a Gaussian window of
standard deviation 1.5 and 11 pixels (the largest odd size that fits for smaller images), with population
covariance, averaged over the positions where the window fits and over channels. It equals scikit-image's
`structural_similarity(gaussian_weights=True, use_sample_covariance=False, data_range=1)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.core.contract import ExhumeError, Records
from exhume.core.records import total_variation as variation_of

_WINDOW, _SIGMA = 11, 1.5  # of SSIM
_C1, _C2 = 0.01**2, 0.03**2
_FRAME = 4  # pixels from the edge that count as background


def mse(found: Tensor, truth: Tensor) -> Tensor:
    return (found - truth).double().square().flatten(1).mean(1)


def mae(found: Tensor, truth: Tensor) -> Tensor:
    return (found - truth).double().abs().flatten(1).mean(1)


def psnr(found: Tensor, truth: Tensor) -> Tensor:
    """10 log10(1 / MSE) in dB for values in [0, 1]; an exact match is reported as 100 dB."""
    return (-10 * torch.log10(mse(found, truth).clamp_min(1e-10))).clamp_max(100.0)


def affine_fitted(found: Tensor, truth: Tensor) -> Tensor:
    """(t, *shape) twice to (t, *shape): a·found + b with the a and b of each record that fit it best.

    It needs the truth, so it is a yardstick: what brightness and contrast alone explain. A constant stays
    constant, at the truth's mean.
    """
    flat, wanted = found.double().flatten(1), truth.double().flatten(1)
    middle, level = flat.mean(1, keepdim=True), wanted.mean(1, keepdim=True)
    apart = flat - middle
    slope = (apart * (wanted - level)).sum(1, keepdim=True) / apart.square().sum(
        1, keepdim=True
    ).clamp_min(1e-12)
    return (level + slope * apart).reshape(truth.shape).to(truth.dtype)


def directions(flat: Tensor) -> Tensor:
    """(t, d) without mean and length: products are correlations; a constant is no direction at all."""
    centred = flat - flat.mean(1, keepdim=True)
    unit: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return unit


def ssim(found: Tensor, truth: Tensor) -> Tensor:
    """(t, c, h, w) twice to (t,)."""
    channels = found.shape[1]
    side = min(_WINDOW, *found.shape[2:])
    side -= 1 - side % 2
    at = torch.arange(side, dtype=torch.float64, device=found.device) - side // 2
    line = torch.exp(-0.5 * (at / _SIGMA) ** 2)
    line /= line.sum()

    def blur(image: Tensor) -> Tensor:
        across = F.conv2d(image, line.expand(channels, 1, 1, side), groups=channels)
        return F.conv2d(across, line[:, None].expand(channels, 1, side, 1), groups=channels)

    x, y = found.double(), truth.double()
    mean_x, mean_y = blur(x), blur(y)
    var_x = blur(x * x) - mean_x**2
    var_y = blur(y * y) - mean_y**2
    covariance = blur(x * y) - mean_x * mean_y
    score = ((2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)) / (
        (mean_x**2 + mean_y**2 + _C1) * (var_x + var_y + _C2)
    )
    return score.flatten(1).mean(1)


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


# How busy an image is, in four numbers. Every function: (t, c, h, w) in [0, 1] to (t,), fp64.


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
    return variation_of(images.double())


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


# The nearest-neighbour oracle: the best answer of somebody who may only choose among records already held. It
# looks at the truth, so it is a yardstick and not an attack. An attack that comes closer than the oracle has
# learned something that was in no record the adversary held.


def nearest(records: Tensor, pool: Records, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(t, *shape) to the index in the pool of the nearest record (t,) and its mean squared error (t,).

    own: (t,) the records' own places in the pool, which do not count.
    """
    flat = pool.inputs.flatten(1)
    wanted = records.flatten(1)
    parts = []
    for start in range(0, len(wanted), 256):
        apart = torch.cdist(wanted[start : start + 256], flat)
        if own is not None:
            apart.scatter_(1, own[start : start + 256, None], torch.inf)
        parts.append(apart.argmin(1))
    index = torch.cat(parts)
    return index, (wanted - flat[index]).double().square().mean(1)
