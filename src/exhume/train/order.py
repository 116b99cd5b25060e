"""Which records each of a client's steps saw, found out from its update and all its records.

Every step gives each record's loss a weight, 1/B in a batch of B and 0 outside of it. The weights that
explain the update best are found from even ones, and rounded: a record is in one batch an
epoch.

Least squares that some equations may fail: Levenberg and Marquardt, the cost of Geman and McClure.

Networks with gates are smooth but for jumps: an equation on the wrong side of one is an outlier until the
unknowns are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap

from exhume.core.contract import Key, Layout
from exhume.train.fleet import GENERAL, forward_operations
from exhume.train.least_squares import damped_step
from exhume.train.local import LocalTraining, Routine, record_losses

_PULLS = (1e-4, 1e-8)  # how strongly weights are held to what they start from, stage by stage
_SWAPS = 300  # tried, at most
_BETTER = 0.999  # of the misfit before
_NUMBERS = 5e7  # of a Jacobian; of a larger update some values do
EXACT = 3e-6  # misfit at which rounding is all that is left
_STEPS = 40  # of Levenberg and Marquardt, in each stage
_USUAL = 40  # steps in all stages, as they were seen to be
_DERIVATIVE, _OVERHEAD = 6, 1.0  # passes forward for a gradient and its change; seconds besides
_STALLED, _PATIENCE = 1e-4, 3  # relative gain of a step that counts as none; how many end a stage


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

    def misfit(flat: Tensor) -> Tensor:
        weights = flat.reshape(len(rates), count)
        end = routine.trained(at, lambda here, k: grad(loss)(here, weights[k]), rates, live)
        left: Tensor = (routine.average(at, end, rates, live) - wanted)[some] / size
        return left

    directions = free_directions(routine, count)
    groups = _rows(layout)
    some = torch.arange(len(at))  # values of the update: all, or as many as are affordable
    if len(at) > (most := int(_NUMBERS / len(directions))):
        some = torch.randperm(len(at), generator=Key.from_seed(0).fold("sample").generator())[:most]
    size = wanted[some].norm().clamp_min(1e-300)
    even, along = at.new_full((len(rates) * count,), 1 / count), at.new_zeros(len(directions))
    for pull in _PULLS:
        held = torch.full_like(along, pull)
        along = robust_fit(lambda y: misfit(even + y @ directions), along, groups[some], held)
    weights = rounded((even + along @ directions).reshape(len(rates), count), routine)
    weights = _swapped(weights, routine, misfit)
    return [row.nonzero()[:, 0] for row in weights]


def search_seconds(local: LocalTraining, records: int) -> float:
    """Seconds, estimated, of `rows_behind`: derivatives along all free directions, again and again."""
    if not records or not local.routine.hidden_order(records):
        return 0.0
    steps = len(local.rates(records))
    each = -(-records // local.routine.local_batch)
    directions = local.routine.epochs * (each - 1) * (records - 1)
    gradient = _DERIVATIVE * records * forward_operations(local.architecture)
    return _OVERHEAD + _USUAL * steps * directions * gradient / GENERAL


def free_directions(routine: Routine, records: int) -> Tensor:
    """(f, K · n) an orthonormal basis of the changes of weights that orders can make.

    A step's weights sum to 1, and every record is in one batch of an epoch: sum_k B_k a_ki = 1.
    """
    sizes = [len(row) for row in routine.batches(1, records)]
    each = len(sizes) // routine.epochs
    steps = torch.eye(each, dtype=torch.float64).repeat_interleave(records, 1)
    record = torch.eye(records, dtype=torch.float64)
    once = torch.cat([size * record for size in sizes[:each]], 1)
    constraints = torch.cat([steps, once])
    values, rows = torch.linalg.svd(constraints)[1:]
    free = rows[int((values > 1e-9 * values[0]).sum()) :]
    return torch.kron(torch.eye(routine.epochs, dtype=torch.float64), free.contiguous())


def _rows(layout: Layout) -> Tensor:
    """(p,) a number for each output of each layer: its values fail together."""
    numbers, count = [], 0
    for shape in layout.shapes:
        rows, size = (shape[0], math.prod(shape)) if shape else (1, 1)
        numbers.append(count + torch.arange(rows).repeat_interleave(size // rows))
        count += rows
    return torch.cat(numbers)


def _swapped(weights: Tensor, routine: Routine, misfit: Callable[[Tensor], Tensor]) -> Tensor:
    """Two records of one epoch change places as long as the update is explained better so."""
    best = float(misfit(weights.flatten()).norm())
    each, left = len(weights) // routine.epochs, _SWAPS
    improved = True
    while improved and best > EXACT:
        improved = False
        for first in range(0, len(weights), each):
            for one, other in combinations(range(weights.shape[1]), 2):
                epoch = weights[first : first + each]
                if left == 0 or torch.equal(epoch[:, one], epoch[:, other]):
                    continue
                tried, left = weights.clone(), left - 1
                tried[first : first + each, [one, other]] = epoch[:, [other, one]]
                size = float(misfit(tried.flatten()).norm())
                if size < _BETTER * best:
                    weights, best, improved = tried, size, True
    return weights


def rounded(weights: Tensor, routine: Routine) -> Tensor:
    """(K, n) weights of whole batches, as these prefer: every record is in one batch of each epoch."""
    sizes = [len(row) for row in routine.batches(1, weights.shape[1])]
    each = len(sizes) // routine.epochs
    slots = torch.arange(each).repeat_interleave(torch.tensor(sizes[:each]))
    placed = torch.zeros_like(weights)
    for first in range(0, len(sizes), each):
        cost = -weights[first : first + each][slots].T
        records, places = linear_sum_assignment(cost.numpy())
        for record, place in zip(records, places, strict=True):
            step = int(slots[place])
            placed[first + step, record] = 1 / sizes[step]
    return placed


def robust_fit(
    misfit: Callable[[Tensor], Tensor],
    start: Tensor,
    groups: Tensor,
    pull: Tensor,
    goes_on: Callable[[], bool] = lambda: True,
) -> Tensor:
    """Levenberg and Marquardt, while it goes on:

    sum_j m_j^2 / (m_j^2 + s^2) + sum pull (at - start)^2 / s^2
    """
    here, error = start, misfit(start)
    damping, idle = 1e-3, 0
    every = torch.eye(len(start), dtype=start.dtype)
    for _ in range(_STEPS):
        if float(error.norm()) < EXACT or idle == _PATIENCE or not goes_on():
            break
        jacobian = vmap(lambda along: jvp(misfit, (here,), (along,))[1], chunk_size=64)(every)  # noqa: B023
        sizes = _sizes(error, groups)
        scale = 2 * sizes.median().clamp_min(1e-12)
        weight = (1 / (1 + (sizes / scale).square()).square())[groups]
        normal = (jacobian * weight) @ jacobian.T + torch.diag(pull)
        slope = jacobian @ (weight * error) + pull * (here - start)

        def cost(point: Tensor, scale: Tensor = scale) -> float:
            square = (_sizes(misfit(point), groups) / scale).square()
            return float(
                (square / (1 + square)).sum()
                + (pull * (point - start).square()).sum() / scale.square()
            )

        before = cost(here)
        step = damped_step(normal, slope, damping, lambda move: cost(here - move), before)  # noqa: B023
        if step is None:
            break
        move, after, damping = step
        idle = idle + 1 if after > (1 - _STALLED) * before else 0
        here = here - move
        error = misfit(here)
    return here


def _sizes(error: Tensor, groups: Tensor) -> Tensor:
    """(g,) norms of the groups' parts."""
    total = error.new_zeros(int(groups.max()) + 1).index_add(0, groups, error.square())
    sizes: Tensor = total.sqrt()
    return sizes
