"""Whether what records leave over of an update looks like noise, or like rounding to few levels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exhume.core.contract import Key, Layout

_DEVIATIONS = 4.0
_SLACK = 1e-2  # relative: of a size that is said
_LEVELS = 256  # different values of a tensor that count as few
_ROUNDED = 0.97  # share of the values that must come out at the same level
_SMALL = 64  # values of a tensor, which may all differ even if they are rounded
_BEYOND = 3.0  # deviations: how far the norm of a random matrix may be beyond its edge
_TURNS = 30  # of the power iteration


def is_noise(layout: Layout, sent: Tensor, made: Tensor) -> bool:
    """Independent draws, of one deviation a tensor, prefer neither the update nor any other direction."""
    left, parts = layout.split(sent - made), layout.split(made)
    along = variance = 0.0
    for name, error in left.items():
        deviation, rows = float(error.norm()) / math.sqrt(error.numel()), error.shape[0]
        # norm of a matrix of independent draws of deviation 1: sqrt(m) + sqrt(n), hardly ever more
        edge = math.sqrt(rows) + math.sqrt(error.numel() / rows) + _BEYOND
        if _largest(error) > edge * deviation:
            return False
        along += float((error * parts[name]).sum())
        variance += deviation**2 * float(parts[name].square().sum())
    return abs(along) < _DEVIATIONS * math.sqrt(variance)


def _largest(tensor: Tensor) -> float:
    """The largest singular value of a tensor as a matrix, from below: few directions stand out at once."""
    matrix = tensor.reshape(tensor.shape[0], -1)
    generator = Key.from_seed(0).fold("direction").generator()
    here = torch.randn(matrix.shape[1], generator=generator, dtype=matrix.dtype)
    for _ in range(_TURNS):
        here = matrix.T @ (matrix @ here)
        here = here / here.norm().clamp_min(1e-300)
    return float((matrix @ here).norm())


def is_rounded(layout: Layout, sent: Tensor, made: Tensor) -> bool:
    """Every tensor has few levels, and the nearest to the records' own value is the one that was sent."""
    same = total = 0
    mine = layout.split(made)
    for name, part in layout.split(sent).items():
        flat, values = part.flatten(), mine[name].flatten()
        levels = torch.unique(flat)
        if len(levels) > _LEVELS or 2 * len(levels) > len(flat) > _SMALL:
            return False
        near = levels[torch.bucketize(values, (levels[1:] + levels[:-1]) / 2)]
        signs = values.sign() * levels.abs().max()
        shares = [_share(flat, nearest) for nearest in (near, signs)]
        best = max(shares, key=lambda share: share[0] / max(share[1], 1))
        same, total = same + best[0], total + best[1]
    return total > 0 and same > _ROUNDED * total


def _share(sent: Tensor, expected: Tensor) -> tuple[int, int]:
    """How many are as expected, of how many; most values are zero in both, which says little."""
    counted = (sent != 0) | (expected != 0)
    return int((sent == expected)[counted].sum()), int(counted.sum())


def has_size(left: Tensor, deviation: float) -> bool:
    """Whether so many independent draws of this deviation have the size of what is left over (p,)."""
    off = float(left.norm()) / (deviation * math.sqrt(len(left))) - 1
    return abs(off) < _DEVIATIONS / math.sqrt(2 * len(left)) + _SLACK
