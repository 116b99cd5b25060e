"""The nearest-neighbour oracle: the best answer of somebody who may only choose among records already held.

It looks at the truth, so it is a yardstick and not an attack. An attack that comes closer than the
oracle has learned something that was in no record the adversary held.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import Records

__all__ = ["near_duplicates", "nearest"]

_SAME = 0.01  # share of the pool's variance below which two records count as the same


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


def near_duplicates(oracle_mse: Tensor, pool: Records) -> Tensor:
    """(t,) bool: targets that the pool practically contains already, so nothing is learned from them."""
    variance = float(pool.inputs.flatten(1).double().var(0).mean())
    return oracle_mse <= _SAME * variance
