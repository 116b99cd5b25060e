"""Distances between records, value by value. Every function: (t, *shape) twice to (t,)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mae", "mse", "psnr"]


def mse(found: Tensor, truth: Tensor) -> Tensor:
    return (found - truth).double().square().flatten(1).mean(1)


def mae(found: Tensor, truth: Tensor) -> Tensor:
    return (found - truth).double().abs().flatten(1).mean(1)


def psnr(found: Tensor, truth: Tensor) -> Tensor:
    """10 log10(1 / MSE) in dB for values in [0, 1]; an exact match is reported as 100 dB."""
    return (-10 * torch.log10(mse(found, truth).clamp_min(1e-10))).clamp_max(100.0)
