"""Every record of a client that made several local steps, batches and epochs included, at honest weights.

An average gradient is nearly the gradient at the middle of the way that the weights went: both ends are
known. There the gates are searched for as in one gradient, only less strictly. That is a start; then all
records are fitted to the whole update through the simulated steps, and with them which record was in which
batch:

    min_{x, a}  sum_j rho(|u_j - U_j(x, a)|)

U simulates the local training, step k on the records' losses with weights a_k; u_j is what the update says
of neuron j. The records lie in the row span of the first layer's update, exactly: every step adds delta x^T.
So they have b - 1 unknowns each, and the network is simulated on that span. Gates are jumps: a neuron with a
gate on the wrong side fits badly, and rho (bounded, after Geman and McClure) lets it wait until its record is
right. Which records a step saw is not known: a_k starts even. Once the records are right, a is 0 or 1 by
itself, and is rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.gradient.chains import Chain, Layer, chain_of
from exhume.attacks.gradient.gates import Layers, features_behind, likely_records
from exhume.attacks.releases import BatchAnswer, EachGradient, architecture_of, goes_on
from exhume.core.contract import Key, Knowledge, NotApplicable, Progress, Store, silent
from exhume.train.least_squares import least_norm
from exhume.train.local import LocalTraining
from exhume.train.order import EXACT, free_directions, robust_fit, rounded

_EXPLAINED = 1e-3  # residual of the whole update, below which the records are its records
_EVEN = (1e-4, 1e-8)  # how strongly weights are held to what they start from, stage by stage
_CLEARER = 0.95  # of what was left over: what another label must leave at most
_CYCLES = 3  # of rounding weights and freeing them again
_MOST = 1.5e8  # numbers of a Jacobian


@dataclass(frozen=True)
class LocalStepsAttack:
    """Reconstruct all records behind the average step of a client's local training.

    Sees: `Gradient`, all layers of a fully connected network with ReLU or leaky gates.
    Assumes: the architecture; how the client trained (SGD, with momentum, decay and schedule as they are),
    but not the order of its records; biases; linearly independent records, fewer than neurons.
    Guarantees: the number of records is the rank of the first layer's update, however many the steps;
    `residual`, of the update that training on the answers gives, certifies them without the truth.
    Reference: ours; gates after SPEAR (Dimitrov et al. 2024).
    """

    rounds: int = 8  # of 256 starts
    attempts: int = 2  # with other starts, until the update is explained

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        architecture = architecture_of(knowledge, "going back through local steps")
        local = knowledge.local
        if not isinstance(local, LocalTraining):
            raise NotApplicable(
                "going back through local steps needs how the client trained", ever=True
            )
        _check(local)
        shape, stage = tuple(architecture.input_shape), "going back through local steps"

        def invert(gradient: Tensor, parameters: Tensor, index: int) -> BatchAnswer:
            seen = Layers(architecture, gradient, parameters, progress=progress)
            fit, trial = self._fitted(seen, local, key.fold(index))
            records = fit.records(trial)
            return BatchAnswer(
                records.to(gradient.dtype).reshape(-1, *shape),
                torch.full((len(records),), -trial.residual, dtype=torch.float64),
                {"batch_size": float(len(records)), "residual": trial.residual},
                fit.labels,
                complete=trial.residual < _EXPLAINED,
            )

        return EachGradient(shape, invert, "the attack on local steps", stage, progress)

    def _fitted(self, seen: Layers, local: LocalTraining, key: Key) -> tuple[ThroughSteps, Trial]:
        chain = _whole_chain(seen)
        basis = seen.span(chain.layers[0], key)
        count = basis.shape[1]
        middle = at_path_midpoint(seen, local, count)
        fits: list[tuple[ThroughSteps, Trial]] = []
        refused = NotApplicable("no record's gates were found", ever=True)
        for attempt in range(self.attempts):
            attempt_key = key.fold("attempt", attempt)
            try:
                start = features_behind(middle, chain, self.rounds, attempt_key, likely_records)
            except NotApplicable as why:
                refused = why
                continue
            if len(start.inputs) < count:
                some = f"the gates of {len(start.inputs)} of {count} records were found"
                refused = NotApplicable(some, ever=True)
                continue
            labels = labels_at(middle, chain, start.inputs)
            fit = ThroughSteps.of(seen, chain, local, labels, basis)
            fit = fit.relabelled(fit.start(start.inputs))
            fits.append((fit, fit.fitted(fit.start(start.inputs))))
            if fits[-1][1].residual < _EXPLAINED:
                break
        if not fits:
            raise refused
        return min(fits, key=lambda pair: pair[1].residual)


def _check(local: LocalTraining) -> None:
    why = ""
    if local.routine.optimiser == "adam":
        raise NotApplicable(
            "several steps of Adam do not stay in the span of the records: each value has a scale of its own",
            ever=False,
        )
    if local.routine.loss == "mse":
        why = "several local steps of the squared error are not fitted yet"
    elif local.frozen:
        why = f"{local.frozen[0]} is frozen: only whole networks are fitted"
    if why:
        raise NotApplicable(why, ever=True)


def _whole_chain(seen: Layers) -> Chain:
    """All layers of the network; refuses networks that are anything else."""
    network, why = seen.architecture, ""
    chain = chain_of(network, seen.parameters)
    if chain is None or not chain.whole or not chain.gated:
        raise NotApplicable(
            f"{network}: it is no chain of fully connected layers with gates", ever=False
        )
    if sum(1 + layer.biased for layer in chain.layers) < len(network.layout.names):
        why = f"{network}: it has parameters outside its fully connected layers"
    elif not chain.layers[0].biased:
        why = f"{chain.layers[0].name} has no bias, so that the size is open"
    if why:
        raise NotApplicable(why, ever=False)
    return chain


def at_path_midpoint(seen: Layers, local: LocalTraining, records: int) -> Layers:
    """The average step of so many records, taken for a gradient at the middle of the weights' way."""
    end = local.routine.ended(seen.parameters, seen.gradient, local.rates(records))
    middle = (seen.parameters + end) / 2
    return Layers(seen.architecture, seen.gradient, middle, records, progress=seen.progress)


def labels_at(seen: Layers, chain: Chain, inputs: Tensor) -> Tensor:
    """(b,) labels, given what enters the chain: dL/dW of the last layer is 1/b sum_i (p_i - y_i) h_i^T."""
    *below, last = chain.layers
    heights = inputs
    for layer in below:
        outputs = _with_bias(heights, layer) @ seen.weights(layer).T
        heights = torch.where(outputs > 0, outputs, layer.leak * outputs)
    heights = _with_bias(heights, last)
    outputs = heights @ seen.weights(last).T
    return labels_of(outputs, len(inputs) * least_norm(heights.T, seen.slopes(last).T))


def labels_of(outputs: Tensor, errors: Tensor) -> Tensor:
    """(b,) labels y at which p - y, p of the outputs (b, c), comes nearest to the errors (b, c)."""
    if outputs.shape[1] == 1:
        return (torch.sigmoid(outputs) - errors > 0.5).long()[:, 0]
    return (torch.softmax(outputs, 1) - errors).argmax(1)


def _with_bias(heights: Tensor, layer: Layer) -> Tensor:
    return torch.cat([heights, torch.ones_like(heights[:, :1])], 1) if layer.biased else heights


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
    progress: Progress = silent

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
        told = seen.progress
        return ThroughSteps(chain, local, labels, basis, wanted, sent, owners, rows, told)

    @property
    def count(self) -> int:
        return self.basis.shape[1]

    # Coordinates: [x, 1] = (offset + z N) basis^T, so that the last entry is 1

    @cached_property
    def _offset(self) -> Tensor:
        return self.basis[-1] / self.basis[-1].square().sum()

    @cached_property
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
        if here.shape[1] == 1:
            errors = torch.sigmoid(here) - self.labels[:, None]  # (b, c) p - y
        else:
            errors = torch.softmax(here, 1) - F.one_hot(self.labels, here.shape[1])
        back = weights[:, None] * errors
        slopes = [back.T @ entered[-1]]
        for place in range(len(layers) - 2, -1, -1):
            back = (back @ layers[place + 1])[:, : self.rows[place]] * gates[place]
            slopes.insert(0, back.T @ entered[place])
        return torch.cat([slope.flatten() for slope in slopes])

    # Fitting

    def relabelled(self, trial: Trial) -> ThroughSteps:
        """With labels that explain the update better, changed one after the other."""
        fit, best = self, self._left(trial)
        while True:
            others = [
                replace(fit, labels=fit.labels.index_fill(0, torch.tensor([record]), label))
                for record in range(self.count)
                for label in range(max(2, self.rows[-1]))
                if label != int(fit.labels[record])
            ]
            left, place = min((other._left(trial), place) for place, other in enumerate(others))
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
            best = min(best, whole, key=lambda each: each.residual)
            if best.residual < EXACT * 10 or whole.residual > trial.residual * 2:
                break
            trial = whole
        return min(best, trial, key=lambda each: each.residual)

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
        going = partial(goes_on, self.progress, "fitting records through local steps", 0, 1)
        fitted = robust_fit(misfit, at, self.groups, pull, going)
        inside = fitted[:held].reshape(trial.inside.shape)
        return Trial(inside, weights(fitted), float(misfit(fitted).norm()))
