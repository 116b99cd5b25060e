"""First and second moments of features: what a server can learn of a client's head by looking on.

A server keeps what it is sent. The mean of the features at every place, and the covariances of their channels
between neighbouring places, say much about the head that makes them; the records of the server's own, sent
through a shadow of that head, should have the same ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError

_LAGS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))


def moments(features: Tensor) -> list[Tensor]:
    """(n, c, h, w) to the mean (c, h, w) and, for each lag that fits, covariances of channels (c, c).

    (n, k) numbers are maps of one place, (n, l, e) vectors maps of one column.
    """
    if features.ndim == 3:
        features = features.transpose(1, 2)[..., None]
    if features.ndim == 2:
        features = features[:, :, None, None]
    if features.ndim != 4 or len(features) < 2:
        raise ExhumeError(
            f"features of shape {tuple(features.shape)}: at least two maps (c, h, w) have moments"
        )
    mean = features.mean(0)
    centred = features - mean
    height, width = features.shape[2:]
    found = [mean]
    for down, across in _LAGS:
        if down >= height or across >= width:
            continue
        here = centred[:, :, : height - down, : width - across]
        there = centred[:, :, down:, across:]
        places = here.shape[0] * here.shape[2] * here.shape[3]
        found.append(torch.einsum("nchw,ndhw->cd", here, there) / places)
    return found


def moment_distance(found: list[Tensor], wanted: list[Tensor]) -> Tensor:
    """Sum over the moments of the squared difference, over the squared size of the wanted one."""
    parts = [
        (a - b).square().sum() / b.square().sum().clamp_min(1e-12)
        for a, b in zip(found, wanted, strict=True)
    ]
    return torch.stack(parts).sum()
