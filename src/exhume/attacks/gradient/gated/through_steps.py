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
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.gradient.gated.attack import Layers
from exhume.attacks.gradient.gated.layers import Chain
from exhume.contract import NotApplicable
from exhume.train.local import LocalTraining
from exhume.train.order import free_directions, rounded
from exhume.train.robust_fit import EXACT, robust_fit

__all__ = ["ThroughSteps", "Trial"]

_EVEN = (1e-4, 1e-8)  # how strongly weights are held to what they start from, stage by stage
_CLEARER = 0.95  # of what was left over: what another label must leave at most
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

    def relabelled(self, trial: Trial) -> ThroughSteps:
        """The same with labels that explain the update better, changed one after the other."""
        fit, best = self, self._left(trial)
        while True:
            others = [
                replace(fit, labels=_with(fit.labels, record, label))
                for record in range(self.count)
                for label in range(max(2, self.rows[-1]))
                if label != int(fit.labels[record])
            ]
            left, place = min((one._left(trial), place) for place, one in enumerate(others))
            if left > _CLEARER * best:
                return fit
            fit, best = others[place], left

    def _left(self, trial: Trial) -> float:
        made = self._update(trial.inside, trial.weights)
        return float((made - self.wanted).norm() / self.wanted.norm())

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
            if best.residual < EXACT * 10 or whole.residual > trial.residual * 2:
                break
            trial = whole
        return min(best, trial, key=lambda one: one.residual)

    def _descended(self, trial: Trial, even: float | None) -> Trial:
        """even: how strongly weights are held to their present values; None: they stay."""
        held, size = trial.inside.numel(), self.wanted.norm()
        routine = self.local.routine
        free = trial.weights.new_zeros(0, trial.weights.numel())
        if even is not None:
            free = free_directions(routine, self.count)
        at = torch.cat([trial.inside.flatten(), free.new_zeros(len(free))])
        if len(self.wanted) * len(at) > _MOST:
            raise NotApplicable(
                f"{self.count} records in {len(trial.weights)} steps have too many unknowns",
                ever=True,
            )

        def weights(point: Tensor) -> Tensor:
            return trial.weights + (point[held:] @ free).reshape(trial.weights.shape)

        def misfit(point: Tensor) -> Tensor:
            made = self._update(point[:held].reshape(trial.inside.shape), weights(point))
            left: Tensor = (made - self.wanted) / size
            return left

        pull = torch.zeros_like(at)
        pull[held:] = even or 0.0
        found = robust_fit(misfit, at, self.groups, pull)
        inside = found[:held].reshape(trial.inside.shape)
        return Trial(inside, weights(found), float(misfit(found).norm()))


def _with(labels: Tensor, record: int, label: int) -> Tensor:
    changed = labels.clone()
    changed[record] = label
    return changed
