"""The labels of a batch, read off the last layer's bias.

For a mean cross-entropy dL/db_c = mean_i (p_c(x_i) - [y_i = c]), so B (p_c - dL/db_c) counts the records of
class c. The probabilities are those of the queried network on noise: exact enough while it is untrained.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from exhume.core.contract import Architecture, Key

__all__ = ["infer_labels"]

_PROBES = 64


def infer_labels(
    values: Tensor, at: Tensor, architecture: Architecture, batch: int
) -> Tensor | None:
    """(b,) sorted labels, or None where the last layer has no bias to read."""
    layout = architecture.layout
    if len(layout.shapes[-1]) != 1:
        return None
    slope = layout.split(values)[layout.names[-1]].double()
    generator = Key.from_seed(0).fold("probes").generator()
    probes = torch.rand(_PROBES, *architecture.input_shape, generator=generator).to(at.dtype)
    logits = functional_call(architecture.build(), layout.split(at), (probes,)).double()
    if len(slope) != logits.shape[1]:
        return None  # a bias of another layer
    if len(slope) == 1:
        ones = round(float(batch * (torch.sigmoid(logits).mean() - slope[0])))
        ones = min(max(ones, 0), batch)
        return torch.tensor([0] * (batch - ones) + [1] * ones)
    counts = batch * (torch.softmax(logits, 1).mean(0) - slope)
    found: list[int] = []
    for _ in range(batch):  # the largest count that is left takes the next record
        label = int(counts.argmax())
        counts[label] -= 1
        found.append(label)
    return torch.tensor(sorted(found))
