"""Gradient descent, undone: the sum of gradients behind every step, from the parameters that were seen.

    v_t = (theta_t - theta_{t+1}) / rate;   sum_t = N (v_t - m v_{t-1} - decay theta_t)

Exact but for rounding of the parameters, which is of the order of N / rate · 1e-7 of them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from exhume.core.contract import Key, NotApplicable, Records
from exhume.train.dp import KnownDraw, Privacy
from exhume.train.optimisers import Descent, Optimiser
from exhume.train.recipe import FullBatch

__all__ = ["clipped_sum", "sums_behind"]


def sums_behind(optimiser: Optimiser, trail: Tensor, final: Tensor, records: int | float) -> Tensor:
    """(r, T, p) parameters before each step and (r, p) after the last: (r, T, p) sums of gradients."""
    if not isinstance(optimiser, Descent):
        raise NotApplicable(
            f"optimiser: {optimiser}: its steps cannot be undone, those of gradient descent can",
            ever=True,
        )
    after = torch.cat([trail[:, 1:], final[:, None]], dim=1)
    velocity = (trail - after) / optimiser.rate
    gradient = velocity - optimiser.weight_decay * trail
    gradient[:, 1:] -= optimiser.momentum * velocity[:, :-1]
    return gradient * records


def clipped_sum(
    recipe: FullBatch, parameters: Tensor, records: Records, drawn: Tensor | None = None
) -> Tensor:
    """(s, p) models: (s, p) sums over the records of their gradients, each clipped, without noise.

    drawn: (s, n) those that count; None: all. One step of rate 1 of the recipe's own engine, so that it is
    the sum which training took.
    """
    step = replace(
        recipe,
        descent=Descent(steps=1, rate=1.0, momentum=0.0),
        privacy=Privacy(recipe.privacy.clip),
    )
    none = records.none_for(len(parameters))
    sampler = None if drawn is None else KnownDraw(drawn)
    moved = step.fit(parameters, records, none, Key.from_seed(0), sampler=sampler)
    return (parameters - moved) * len(records)
