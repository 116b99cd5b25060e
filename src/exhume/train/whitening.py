"""Coordinates in which images are about white noise: smooth changes are cheap, fine grain is dear.

    x = S w,     S = C^(1/2) (x) F^T diag(s) F

F the orthonormal cosine transform, s^2 a power law in the spatial frequency and C the covariance of the
channels, both fitted to a few known images. S is symmetric. Krylov solvers then find smooth corrections
first, which is where natural images differ, and stopping early leaves noise out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Whitening"]

_LEAST = 1e-3  # of the largest scale


@dataclass(frozen=True, eq=False)
class Whitening:
    rows: Tensor  # (h, h) cosine transform
    columns: Tensor  # (w, w)
    scale: Tensor  # (h, w)
    channels: Tensor  # (c, c) symmetric

    @staticmethod
    def of(images: Tensor) -> Whitening:
        """Fitted to (n, c, h, w)."""
        _, c, h, w = images.shape
        centred = (images - images.mean(0)).double()
        rows, columns = _cosines(h).to(centred), _cosines(w).to(centred)
        power = (rows @ centred @ columns.T).square().mean((0, 1))
        scale = _power_law(power).sqrt()
        pixels = centred.transpose(0, 1).reshape(c, -1)
        spread = pixels @ pixels.T / pixels.shape[1]
        spread = spread / spread.diagonal().mean().clamp_min(1e-12)
        values, vectors = torch.linalg.eigh(spread)
        root = vectors @ torch.diag(values.clamp_min(1e-2).sqrt()) @ vectors.T
        scale = (scale / scale.max()).clamp_min(_LEAST)
        return Whitening(*(part.to(images.dtype) for part in (rows, columns, scale, root)))

    def apply(self, images: Tensor) -> Tensor:
        """S times (n, c, h, w), which is also its transpose."""
        waves = self.scale * (self.rows @ images @ self.columns.T)
        back = self.rows.T @ waves @ self.columns
        return torch.einsum("cd,ndhw->nchw", self.channels, back)


def _cosines(size: int) -> Tensor:
    """(size, size) orthonormal DCT-II."""
    place = torch.arange(size, dtype=torch.float64)
    found = torch.cos(math.pi / size * (place + 0.5) * place[:, None]) * math.sqrt(2 / size)
    found[0] /= math.sqrt(2)
    return found


def _power_law(power: Tensor) -> Tensor:
    """The a·(1 + f^2)^b nearest to a power spectrum (h, w), in logarithms."""
    h, w = power.shape
    u, v = torch.arange(h).to(power), torch.arange(w).to(power)
    frequency = torch.log1p(u[:, None].square() + v.square()).flatten()
    known = power.flatten() > 0
    if int(known.sum()) < 2:
        return torch.ones_like(power)
    design = torch.stack([torch.ones_like(frequency), frequency], 1)
    fit = torch.linalg.lstsq(design[known], power.flatten()[known].log()[:, None]).solution
    smooth: Tensor = (design @ fit)[:, 0].exp().view(h, w)
    return smooth
