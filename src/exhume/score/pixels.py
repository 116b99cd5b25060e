"""Distances between records, value by value: (t, *shape) twice to (t,), where nothing else is said."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["affine_fitted", "directions", "mae", "mse", "psnr"]


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
