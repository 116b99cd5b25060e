"""Which records each of a client's steps saw, found out from its update and all its records.

Every step gives each record's loss a weight, 1/B in a batch of B and 0 outside of it. The weights that
explain the update best are found by Gauss and Newton from even ones, and rounded: a record is in one batch an
epoch.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap

from exhume.contract import Key
from exhume.train.local import LocalTraining, record_losses
from exhume.train.routine import Routine

__all__ = ["rounded", "rows_behind"]

_TURNS = 6
_RIDGE = 1e-9  # relative: what the update does not say stays even
_NUMBERS = 5e7  # of a Jacobian; of a larger update some values do


def rows_behind(
    local: LocalTraining, at: Tensor, inputs: Tensor, labels: Tensor, update: Tensor
) -> list[Tensor] | None:
    """Rows of each step; None where every step sees all records or the order is known.

    at, update: (p,); inputs: (n, *shape) and labels (n,), all records of the client.
    """
    count, routine = len(labels), local.routine
    if not routine.hidden_order(count):
        return None
    at, wanted = at.double(), update.double()
    rates = local.rates(count)
    module, layout = local.architecture.build().double(), local.architecture.layout
    live = None if local.live is None else local.live.double()
    records = inputs.double() if inputs.is_floating_point() else inputs

    def loss(flat: Tensor, weight: Tensor) -> Tensor:
        outputs = functional_call(module, layout.split(flat), (records,))
        return (weight * record_losses(outputs, labels, routine.loss)).sum()

    def made(flat: Tensor) -> Tensor:
        weights = flat.reshape(len(rates), count)
        end = routine.trained(at, lambda here, k: grad(loss)(here, weights[k]), rates, live)
        found: Tensor = routine.average(at, end, rates, live)[some]
        return found

    unknowns = len(rates) * count
    some = _sample(len(at), int(_NUMBERS / unknowns))
    here = torch.full((unknowns,), 1 / count, dtype=torch.float64)
    every = torch.eye(unknowns, dtype=torch.float64)
    for _ in range(_TURNS):
        jacobian = vmap(lambda along, at=here: jvp(made, (at,), (along,))[1], chunk_size=16)(every)
        normal = jacobian @ jacobian.T
        ridge = _RIDGE * normal.diagonal().mean() * torch.eye(unknowns, dtype=torch.float64)
        move = torch.linalg.solve(normal + ridge, jacobian @ (made(here) - wanted[some]))
        here = here - move
        if not bool(torch.isfinite(here).all()):
            return None
    weights = rounded(here.reshape(len(rates), count), routine)
    return [row.nonzero()[:, 0] for row in weights]


def _sample(size: int, most: int) -> Tensor:
    """Places of an update: all, or as many as are affordable."""
    if size <= most:
        return torch.arange(size)
    return torch.randperm(size, generator=Key.from_seed(0).fold("sample").generator())[:most]


def rounded(weights: Tensor, routine: Routine) -> Tensor:
    """(K, n) weights of whole batches, as these prefer: every record is in one batch of each epoch."""
    sizes = [len(row) for row in routine.batches(1, weights.shape[1])]
    each = len(sizes) // routine.epochs
    slots = torch.arange(each).repeat_interleave(torch.tensor(sizes[:each]))
    found = torch.zeros_like(weights)
    for first in range(0, len(sizes), each):
        cost = -weights[first : first + each][slots].T
        records, places = linear_sum_assignment(cost.numpy())
        for record, place in zip(records, places, strict=True):
            step = int(slots[place])
            found[first + step, record] = 1 / sizes[step]
    return found
