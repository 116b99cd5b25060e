"""SSIM of images in [0, 1].

Convention: Gaussian window of standard deviation 1.5 and 11 pixels (the largest odd size that fits
for smaller images), population covariance, averaged over the positions where the window fits and over
channels. It equals scikit-image's `structural_similarity(gaussian_weights=True,
use_sample_covariance=False, data_range=1)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ssim"]

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


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
