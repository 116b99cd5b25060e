"""Candidates of several restarts in one pool, surest first.

Restarts end in different local optima, but where they meet they meet at a training record: confidence is
how closely the nearest candidate of another restart agrees. With one restart it is the share of the
weights that a candidate explains, lambda_i·margin_i by Euler's theorem.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

__all__ = [
    "Run",
    "agreed",
    "by_own_confidence",
    "distinct",
    "pooled",
    "said",
    "stretched",
    "to_images",
]

_SAME = 0.7  # cosine above which two candidates are the same image


@dataclass(frozen=True, eq=False)
class Run:
    """One restart."""

    inputs: Tensor  # (m, d), centred as the network takes them
    labels: Tensor  # (m,)
    explained: Tensor  # (m,)
    loss: float
    diverged: float = -1.0  # the step at which it did; -1: never
    records: float = 0.0  # training records it assumed
    seconds: float = 0.0  # that it took when it was computed


def pooled(runs: list[Run]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (k, d), confidence (k,) and labels (k,), surest first."""
    return _ordered(runs, runs[0].explained if len(runs) == 1 else _agreement(runs))


def by_own_confidence(runs: list[Run]) -> tuple[Tensor, Tensor, Tensor]:
    """Pool runs whose candidates carry their own confidence, and whose rounds are not meant to agree."""
    return _ordered(runs, torch.cat([run.explained for run in runs]))


def _ordered(runs: list[Run], confidence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    inputs, labels = torch.cat([r.inputs for r in runs]), torch.cat([r.labels for r in runs])
    order = confidence.argsort(descending=True, stable=True)
    return inputs[order], confidence[order], labels[order]


def agreed(runs: list[Run]) -> tuple[Tensor, Tensor]:
    """What the restarts found in common, each once: inputs (k, d) and labels (k,)."""
    inputs, labels = torch.cat([r.inputs for r in runs]), torch.cat([r.labels for r in runs])
    if len(runs) < 2:
        return inputs[:0], labels[:0]
    confidence, units = _agreement(runs), normalize(inputs, dim=1)
    kept: list[int] = []
    for index in confidence.argsort(descending=True, stable=True).tolist():
        if float(confidence[index]) < _SAME:
            break
        if not kept or float((units[kept] @ units[index]).max()) <= _SAME:
            kept.append(index)
    return inputs[kept], labels[kept]


def distinct(inputs: Tensor, sure: Tensor, same: float) -> tuple[Tensor, Tensor]:
    """Which of (m, d) inputs to keep so that each image is there once: indices (k,), surest first, and how
    many inputs each stands for (k,)."""
    units = normalize(inputs, dim=1)
    left = torch.ones(len(units), dtype=torch.bool, device=units.device)
    kept, sizes = list[int](), list[int]()
    for index in sure.argsort(descending=True, stable=True).tolist():
        if left[index]:
            alike = (units @ units[index] > same) & left
            alike[index] = True
            left &= ~alike
            kept.append(index)
            sizes.append(int(alike.sum()))
    return torch.tensor(kept, device=units.device), torch.tensor(sizes, device=units.device)


def said(outputs: Tensor) -> Tensor:
    """(m,) labels by (m, c) outputs, which a network has learnt of its training records."""
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)


def _agreement(runs: list[Run]) -> Tensor:
    """(k,) cosine of each candidate with the nearest of another restart that has its label.

    Two restarts at a time: all pairs at once would take memory with the square of their number.
    """
    units = [normalize(run.inputs, dim=1) for run in runs]
    nearest = []
    for one, own in zip(units, runs, strict=True):
        best = torch.full_like(one[:, 0], -1.0)
        for other, theirs in zip(units, runs, strict=True):
            if theirs is not own:
                apart = own.labels[:, None] != theirs.labels
                cosines = (one @ other.T).masked_fill_(apart, -1.0)
                best = torch.maximum(best, cosines.max(1).values)
        nearest.append(best)
    return torch.cat(nearest)


def to_images(inputs: Tensor, centre: Tensor) -> Tensor:
    """(k, d) centred inputs to records in [0, 1]: the centre added, then stretched to the full range.

    The stretch, as in the authors' code, makes up for a contrast that the residual hardly determines.
    Records that are no images are left as they are.
    """
    records = inputs.reshape(-1, *centre.shape) + centre.to(inputs)
    return records if centre.ndim < 3 else stretched(records)


def stretched(records: Tensor) -> Tensor:
    """(k, *shape) each record stretched to [0, 1]."""
    low, high = records.flatten(1).aminmax(dim=1)
    room = (-1, *(1,) * (records.ndim - 1))
    return (records - low.view(room)) / (high - low).clamp_min(1e-9).view(room)
