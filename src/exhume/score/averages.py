"""Averages are no records: a candidate nearer to a mean of its batch than to any record of it."""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import Records

__all__ = ["averages_among"]


def averages_among(candidates: Tensor, batch: Records) -> Tensor:
    """(k, *shape) to (k,) bool. Means: of the whole batch, and of those of its records that share a class."""
    groups = [torch.ones(len(batch), dtype=torch.bool)]
    groups += [batch.labels == label for label in torch.unique(batch.labels)]
    flat = batch.inputs.flatten(1).double()
    means = [flat[group].mean(0) for group in groups if int(group.sum()) > 1]
    if not means or not len(candidates):
        return torch.zeros(len(candidates), dtype=torch.bool)
    found = candidates.flatten(1).double()
    to_records = torch.cdist(found, flat).amin(1)
    return torch.cdist(found, torch.stack(means)).amin(1) < to_records
