"""Every record of a client that made several local steps, batches and epochs included, at honest weights.

An average gradient is nearly the gradient at the middle of the way that the weights went: both ends are
known. There the gates are searched for as in one gradient (`search.py`), only less strictly. That is a start;
then all records are fitted to the whole update through the simulated steps (`through_steps.py`), and with
them which record was in which batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.gated.attack import Features, Layers, features_behind
from exhume.attacks.gradient.gated.layers import Chain, Layer, chain_of
from exhume.attacks.gradient.gated.search import likely_records
from exhume.attacks.gradient.gated.through_steps import ThroughSteps, Trial
from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.attacks.gradient.tensor.least_squares import least_squares
from exhume.contract import Architecture, Key, Knowledge, NotApplicable, Progress, Store, silent
from exhume.train.local import LocalTraining

__all__ = ["LocalStepsAttack", "halfway", "labels_at"]

_EXPLAINED = 1e-3  # residual of the whole update, below which the records are its records


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
        architecture, local = knowledge.architecture, knowledge.local
        if architecture is None or not isinstance(local, LocalTraining):
            raise NotApplicable(
                "going back through local steps needs the architecture and how the client trained",
                ever=True,
            )
        _check(local)
        inversion = _Inversion(self, architecture, local, key)
        shape, stage = tuple(architecture.input_shape), "going back through local steps"
        return EachGradient(shape, inversion.one, "the attack on local steps", stage, progress)


def _check(local: LocalTraining) -> None:
    if local.routine.optimiser == "adam":
        raise NotApplicable(
            "several steps of Adam do not stay in the span of the records: each value has a scale of its own",
            ever=False,
        )
    if local.routine.loss == "mse":
        raise NotApplicable(
            "several local steps of the squared error are not fitted yet", ever=True
        )
    if local.frozen:
        raise NotApplicable(
            f"{local.frozen[0]} is frozen: only whole networks are fitted", ever=True
        )


@dataclass(frozen=True, eq=False)
class _Inversion:
    attack: LocalStepsAttack
    architecture: Architecture
    local: LocalTraining
    key: Key

    def one(self, gradient: Tensor, parameters: Tensor, index: int) -> Batch:
        shape, key = tuple(self.architecture.input_shape), self.key.fold(index)
        try:
            chain = self._chain(parameters)
            found = self._found(gradient, parameters, chain, key)
        except NotApplicable as why:
            return Batch(gradient.new_zeros(0, *shape), torch.zeros(0), {}, refused=why)
        records, labels, trial = found
        confidence = torch.full((len(records),), -trial.residual, dtype=torch.float64)
        return Batch(
            records.to(gradient.dtype).reshape(-1, *shape),
            confidence,
            {"batch_size": float(len(records)), "residual": trial.residual},
            labels,
            complete=trial.residual < _EXPLAINED,
        )

    def _chain(self, parameters: Tensor) -> Chain:
        chain = chain_of(self.architecture, parameters)
        names = self.architecture.layout.names
        if chain is None or not chain.whole or not chain.gated:
            raise NotApplicable(
                f"{self.architecture}: it is no chain of fully connected layers with gates",
                ever=False,
            )
        if sum(1 + layer.biased for layer in chain.layers) < len(names):
            raise NotApplicable(
                f"{self.architecture}: it has parameters outside its fully connected layers",
                ever=False,
            )
        if not chain.layers[0].biased:
            raise NotApplicable(
                f"{chain.layers[0].name} has no bias, so that the size is open", ever=False
            )
        return chain

    def _found(
        self, gradient: Tensor, parameters: Tensor, chain: Chain, key: Key
    ) -> tuple[Tensor, Tensor, Trial]:
        seen = Layers(self.architecture, gradient, parameters)
        basis = seen.span(chain.layers[0], key)
        count = basis.shape[1]
        middle = halfway(seen, self.local, count)
        best: tuple[Tensor, Tensor, Trial] | None = None
        refused = NotApplicable("no record's gates were found", ever=True)
        for attempt in range(self.attack.attempts):
            try:
                found = self._start(middle, chain, key.fold("attempt", attempt))
            except NotApplicable as why:
                refused = why
                continue
            labels = labels_at(middle, chain, found.inputs)
            fit = ThroughSteps.of(seen, chain, self.local, labels, basis)
            fit = fit.relabelled(fit.start(found.inputs))
            trial = fit.fitted(fit.start(found.inputs))
            if best is None or trial.residual < best[2].residual:
                best = fit.records(trial), fit.labels, trial
            if trial.residual < _EXPLAINED:
                break
        if best is None:
            raise refused
        return best

    def _start(self, middle: Layers, chain: Chain, key: Key) -> Features:
        found = features_behind(middle, chain, self.attack.rounds, key, likely_records)
        if len(found.inputs) < found.rank:
            raise NotApplicable(
                f"the gates of {len(found.inputs)} of {found.rank} records were found", ever=True
            )
        return found


def halfway(seen: Layers, local: LocalTraining, records: int) -> Layers:
    """The average step of so many records, taken for a gradient at the middle of the weights' way."""
    end = local.routine.ended(seen.parameters, seen.gradient, local.rates(records))
    return Layers(seen.architecture, seen.gradient, (seen.parameters + end) / 2, records)


def labels_at(seen: Layers, chain: Chain, inputs: Tensor) -> Tensor:
    """(b,) labels, given what enters the chain: dL/dW of the last layer is 1/b sum_i (p_i - y_i) h_i^T."""
    *below, last = chain.layers
    heights = inputs
    for layer in below:
        outputs = _with_bias(heights, layer) @ seen.weights(layer).T
        heights = torch.where(outputs > 0, outputs, layer.leak * outputs)
    heights = _with_bias(heights, last)
    outputs = heights @ seen.weights(last).T
    errors = len(inputs) * least_squares(heights.T, seen.slopes(last).T)
    if outputs.shape[1] == 1:
        return (torch.sigmoid(outputs) - errors > 0.5).long()[:, 0]
    return (torch.softmax(outputs, 1) - errors).argmax(1)


def _with_bias(heights: Tensor, layer: Layer) -> Tensor:
    return torch.cat([heights, torch.ones_like(heights[:, :1])], 1) if layer.biased else heights
