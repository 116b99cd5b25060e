"""Candidates of several restarts in one pool, surest first.

Restarts end in different local optima, but where they meet they meet at a training record: confidence is
how closely the nearest candidate of another restart agrees. With one restart it is the share of the
weights that a candidate explains, lambda_i·margin_i by Euler's theorem.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Run", "pooled", "to_images"]


@dataclass(frozen=True, eq=False)
class Run:
    """One restart."""

    inputs: Tensor  # (m, d), centred as the network takes them
    explained: Tensor  # (m,)
    loss: float
    diverged: float = -1.0  # the step at which it did; -1: never
    records: float = 0.0  # training records it assumed
    seconds: float = 0.0  # that it took when it was computed


def pooled(runs: list[Run]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (k, d), confidence (k,) and the place of each in the restarts' own order (k,)."""
    inputs = torch.cat([run.inputs for run in runs])
    if len(runs) == 1:
        confidence = runs[0].explained
    else:
        units = [torch.nn.functional.normalize(run.inputs, dim=1) for run in runs]
        confidence = torch.cat(
            [
                torch.stack([(own @ other.T).max(1).values for other in units if other is not own])
                .max(0)
                .values
                for own in units
            ]
        )
    order = confidence.argsort(descending=True, stable=True)
    return inputs[order], confidence[order], order


def to_images(inputs: Tensor, centre: Tensor) -> Tensor:
    """(k, d) centred inputs to records in [0, 1]: the centre added, then stretched to the full range.

    The stretch, as in the authors' code, makes up for a contrast that the residual hardly determines.
    Records that are no images are left as they are.
    """
    records = inputs.reshape(-1, *centre.shape) + centre.to(inputs)
    if centre.ndim < 3:
        return records
    low, high = records.flatten(1).aminmax(dim=1)
    room = (-1, *(1,) * centre.ndim)
    return (records - low.view(room)) / (high - low).clamp_min(1e-9).view(room)
