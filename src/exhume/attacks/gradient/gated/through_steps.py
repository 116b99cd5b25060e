"""All records of a client, fitted to its whole update through the steps that it made.

    min_{x, a}  sum_j rho(|u_j - U_j(x, a)|)

U simulates the local training, step k on the records' losses with weights a_k; u_j is what the update says
of neuron j. The records lie in the row span of the first layer's update, exactly: every step adds delta x^T.
So they have b - 1 unknowns each, and the network is simulated on that span. Gates are jumps: a neuron with a
gate on the wrong side fits badly, and rho (bounded, after Geman and McClure) lets it wait until its record is
right.

Which records a step saw is not known: a_k starts even. Once the records are right, a is 0 or 1 by itself,
and is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jvp, vmap

from exhume.attacks.gradient.gated.attack import Layers
from exhume.attacks.gradient.gated.layers import Chain
from exhume.contract import NotApplicable
from exhume.train.local import LocalTraining
from exhume.train.order import rounded

__all__ = ["ThroughSteps", "Trial"]

_STEPS = 40  # of Levenberg and Marquardt, in each stage
_TRIES = 8  # dampings
_STALLED, _PATIENCE = 1e-4, 3  # relative gain of a step that counts as none; how many end a stage
_EXACT = 3e-6  # residual at which rounding is all that is left
_EVEN = (1e-4, 1e-8)  # how strongly weights are held to what they start from, stage by stage
_CYCLES = 3  # of rounding weights and freeing them again
_MOST = 1.5e8  # numbers of a Jacobian


@dataclass(frozen=True, eq=False)
class Trial:
    """Records on the span, and the weights that steps give them."""

    inside: Tensor  # (b, b - 1) unknowns of the records
    weights: Tensor  # (K, b)
    residual: float = math.inf  # of the whole update, relative


@dataclass(frozen=True, eq=False)
class ThroughSteps:
    """One update, and the network on the span of its records."""

    chain: Chain
    local: LocalTraining
    labels: Tensor  # (b,)
    basis: Tensor  # (f + 1, b) orthonormal
    wanted: Tensor  # (q,) the update, the first layer's on the span
    sent: Tensor  # (q,) the weights the client was sent
    groups: Tensor  # (q,) neurons that the numbers belong to
    rows: tuple[int, ...]  # outputs of the layers

    @staticmethod
    def of(
        seen: Layers, chain: Chain, local: LocalTraining, labels: Tensor, basis: Tensor
    ) -> ThroughSteps:
        slopes = [seen.slopes(layer) for layer in chain.layers]
        weights = [seen.weights(layer) for layer in chain.layers]
        slopes[0], weights[0] = slopes[0] @ basis, weights[0] @ basis
        groups, count = [], 0
        for slope in slopes[:-1]:
            groups.append((count + torch.arange(len(slope)))[:, None].expand_as(slope))
            count += len(slope)
        last = torch.full_like(slopes[-1], count).long()  # its columns belong to the neurons below
        below = len(slopes[-2])
        last[:, :below] = torch.arange(count - below, count)
        wanted, sent, owners = (
            torch.cat([part.flatten() for part in some])
            for some in (slopes, weights, [*groups, last])
        )
        rows = tuple(len(slope) for slope in slopes)
        return ThroughSteps(chain, local, labels, basis, wanted, sent, owners, rows)

    @property
    def count(self) -> int:
        return self.basis.shape[1]

    # Coordinates: [x, 1] = (offset + z N) basis^T, so that the last entry is 1

    @property
    def _offset(self) -> Tensor:
        last = self.basis[-1]
        return last / last.square().sum()

    @property
    def _free(self) -> Tensor:
        """(b - 1, b) directions that keep the last entry."""
        whole: Tensor = torch.linalg.svd(self.basis[-1][None])[2]
        return whole[1:]

    def start(self, inputs: Tensor) -> Trial:
        """From records (b, f)."""
        joined = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
        inside = (joined @ self.basis - self._offset) @ self._free.T
        steps = len(self.local.rates(self.count))
        even = torch.full((steps, self.count), 1 / self.count, dtype=torch.float64)
        return Trial(inside, even)

    def records(self, trial: Trial) -> Tensor:
        """(b, f)"""
        return ((self._offset + trial.inside @ self._free) @ self.basis.T)[:, :-1]

    # The update

    def _update(self, inside: Tensor, weights: Tensor) -> Tensor:
        """(q,) what training gives: the records' losses with these weights in each step."""
        routine, rates = self.local.routine, self.local.rates(self.count)
        inputs = self._offset + inside @ self._free

        def gradient(here: Tensor, k: int) -> Tensor:
            return self._gradient(here, inputs, weights[k])

        return routine.average(self.sent, routine.trained(self.sent, gradient, rates), rates)

    def _gradient(self, flat: Tensor, inputs: Tensor, weights: Tensor) -> Tensor:
        """(q,) of the weighted losses, written out: it is differentiated many times."""
        layers, entered, gates, used = [], [], [], 0
        here = inputs
        for place, (layer, rows) in enumerate(zip(self.chain.layers, self.rows, strict=True)):
            if place and layer.biased:
                here = torch.cat([here, torch.ones_like(here[:, :1])], 1)
            size = rows * here.shape[1]
            layers.append(flat[used : used + size].reshape(rows, here.shape[1]))
            used += size
            entered.append(here)
            here = here @ layers[-1].T
            gates.append(torch.where(here > 0, 1.0, layer.leak))
            if place + 1 < len(self.rows):
                here = gates[-1] * here
        back = weights[:, None] * self._errors(here)
        slopes = [back.T @ entered[-1]]
        for place in range(len(layers) - 2, -1, -1):
            back = (back @ layers[place + 1])[:, : self.rows[place]] * gates[place]
            slopes.insert(0, back.T @ entered[place])
        return torch.cat([slope.flatten() for slope in slopes])

    def _errors(self, outputs: Tensor) -> Tensor:
        """(b, c) p - y"""
        if outputs.shape[1] == 1:
            return torch.sigmoid(outputs) - self.labels[:, None]
        return torch.softmax(outputs, 1) - F.one_hot(self.labels, outputs.shape[1])

    # Fitting

    def fitted(self, trial: Trial) -> Trial:
        """The nearest best fit: with free weights where no order is known, then with whole ones."""
        cut = self.local.routine.cuts(self.count)
        if not cut:
            return self._descended(trial, None)
        best = trial
        for _ in range(_CYCLES):
            for even in _EVEN:
                trial = self._descended(trial, even)
            whole = self._descended(
                replace(trial, weights=rounded(trial.weights, self.local.routine)), None
            )
            best = min(best, whole, key=lambda one: one.residual)
            if best.residual < _EXACT * 10 or whole.residual > trial.residual * 2:
                break
            trial = whole
        return min(best, trial, key=lambda one: one.residual)

    def _descended(self, trial: Trial, even: float | None) -> Trial:
        """even: how strongly weights are held to their present values; None: they stay."""
        held = trial.inside.numel()
        size = self.wanted.norm()
        at = trial.inside.flatten()
        if even is not None:
            at = torch.cat([at, trial.weights.flatten()])
        if len(self.wanted) * len(at) > _MOST:
            raise NotApplicable(
                f"{self.count} records in {len(trial.weights)} steps have too many unknowns",
                ever=True,
            )

        def misfit(point: Tensor) -> Tensor:
            weights = trial.weights
            if even is not None:
                weights = point[held:].reshape(trial.weights.shape)
            update = self._update(point[:held].reshape(trial.inside.shape), weights)
            apart: Tensor = (update - self.wanted) / size
            return apart

        pull = torch.zeros_like(at)
        pull[held:] = even or 0.0
        found = _robust(misfit, at, self.groups, pull)
        weights = trial.weights if even is None else found[held:].reshape(trial.weights.shape)
        inside = found[:held].reshape(trial.inside.shape)
        return Trial(inside, weights, float(misfit(found).norm()))


def _robust(
    misfit: Callable[[Tensor], Tensor], start: Tensor, groups: Tensor, pull: Tensor
) -> Tensor:
    """Levenberg and Marquardt on sum_j m_j^2 / (m_j^2 + s^2) + sum pull (at - start)^2 / s^2."""
    here, error = start, misfit(start)
    damping, idle = 1e-3, 0
    every = torch.eye(len(start), dtype=start.dtype)
    for _ in range(_STEPS):
        if float(error.norm()) < _EXACT or idle == _PATIENCE:
            break
        jacobian = vmap(lambda along: jvp(misfit, (here,), (along,))[1], chunk_size=64)(every)  # noqa: B023
        sizes = _sizes(error, groups)
        scale = 2 * sizes.median().clamp_min(1e-12)
        weight = (1 / (1 + (sizes / scale).square()).square())[groups]
        normal = (jacobian * weight) @ jacobian.T + torch.diag(pull)
        slope = jacobian @ (weight * error) + pull * (here - start)

        def cost(point: Tensor, left: Tensor, scale: Tensor = scale) -> float:
            square = (_sizes(left, groups) / scale).square()
            return float(
                (square / (1 + square)).sum()
                + (pull * (point - start).square()).sum() / scale.square()
            )

        before = cost(here, error)
        for _ in range(_TRIES):
            diagonal = normal.diagonal()
            added = damping * (diagonal + 1e-9 * diagonal.max())
            there = here - torch.linalg.solve(normal + torch.diag(added), slope)
            left = misfit(there)
            after = cost(there, left)
            if after < before:
                break
            damping *= 4
        else:
            break
        damping = max(damping / 5, 1e-12)
        idle = idle + 1 if after > (1 - _STALLED) * before else 0
        here, error = there, left
    return here


def _sizes(error: Tensor, groups: Tensor) -> Tensor:
    """(g,) norms of the groups' parts."""
    total = error.new_zeros(int(groups.max()) + 1).index_add(0, groups, error.square())
    sizes: Tensor = total.sqrt()
    return sizes
