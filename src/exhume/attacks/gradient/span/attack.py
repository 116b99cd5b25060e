"""Every record of a batch from dL/da and dL/dW of a two-layer network: near exact, batch size not given.

dL/dW = sum_i r_i a_j sigma'(w_j · x_i) x_i has rank B and gives the span of the records exactly. Inside it
a gradient is m samples of a function of B variables and of its slopes, and what is left is a small fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.attacks.gradient.reading import Observation, TwoLast, query_parameters, two_last
from exhume.attacks.gradient.span.basis import span_of_slopes
from exhume.attacks.gradient.span.gates import CERTAIN
from exhume.attacks.gradient.span.regression import Samples
from exhume.attacks.gradient.span.signs_and_norms import fix_signs_and_norms, homogeneous
from exhume.attacks.gradient.span.solve import EXACT, solve_gates, solve_smooth
from exhume.attacks.gradient.tensor.hermite import order_for
from exhume.core.contract import (
    Architecture,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)

__all__ = ["SpanAttack"]

_REACH = 0.1  # of the median outer weight


@dataclass(frozen=True)
class SpanAttack:
    """Reconstruct all records behind a gradient of the last two fully connected layers.

    Sees: `Gradient`, both layers, at parameters of `query` (or any with Gaussian hidden weights).
    Assumes: the architecture; a logistic loss or cross-entropy for the norms behind ReLU; linearly
    independent records, fewer than inputs and than neurons.
    Guarantees: the batch size is read off the spectrum. `misfit` (smooth) and `spread` (ReLU) certify an
    answer without the truth. An odd activation, no biases and one or two outputs leave the sign to a prior.
    Reference: Wang23; the span of dL/dW, the regression and the fit inside it are ours.
    """

    spread: float = 1.0  # deviation of the queried weights: about 1 / norm of a record; Wang23: 1
    nonnegative: bool = True  # records are images: the sign where nothing else gives it
    averaged: bool = True  # the loss is a mean over the batch; False: a sum
    largest: int = 48  # records that a smooth activation's fit may look for; cost grows as B^4

    def query(self, architecture: Architecture, key: Key) -> Tensor:
        return query_parameters(architecture, self.spread, key)

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        view = two_last(knowledge.architecture)
        invert, stage = _Inversion(self, view, key).one, "inverting gradients"
        network = view.architecture
        return EachGradient(view.shape, invert, "the span attack", stage, progress, network)


@dataclass(frozen=True, eq=False)
class _Inversion:
    attack: SpanAttack
    view: TwoLast
    key: Key

    def one(self, gradient: Tensor, parameters: Tensor, index: int) -> Batch:
        seen, dtype = self.view.observe(gradient, parameters, index), gradient.dtype
        try:
            basis, _ = span_of_slopes(seen.raw_slopes, self.key.fold("span"))
        except NotApplicable as why:
            return self._refused(seen.raw_slopes.new_zeros(0, self.view.inputs), why)
        try:
            order = order_for(self.view.activation)
        except NotApplicable as why:
            rows = basis.T[:, : self.view.inputs]
            return self._refused(rows.to(dtype), why)
        wide = basis.shape[1]
        if wide > self.attack.largest and not homogeneous(self.view.activation):
            wider = NotApplicable(
                f"dL/dW spans {wide} directions; the fit is for at most {self.attack.largest} records, and "
                "noise or rounding of the update widens the span",
                ever=True,
            )
            return self._refused(basis.T[:, : self.view.inputs].to(dtype), wider)
        records, confidence, own = self._solved(seen, basis, order)
        fixed_up = fix_signs_and_norms(
            self.view.activation,
            seen,
            records,
            biased=self.view.biased,
            nonnegative=self.attack.nonnegative,
            averaged=self.attack.averaged,
        )
        found = fixed_up.records.to(dtype).reshape(len(records), *self.view.shape)
        bar = CERTAIN if "spread" in own else EXACT
        observed = own | {"batch_size": float(len(records)), "order": float(order)}
        return Batch(found, confidence, observed, fixed_up.labels, bool((-confidence < bar).all()))

    def _solved(
        self, seen: Observation, basis: Tensor, order: int
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        """(b, d) records, their confidence, and the certificate."""
        activation, key = self.view.activation, self.key.fold("solve")
        spread = float(seen.weights.double().square().mean().sqrt())
        # points of unit deviation: F as a function of w / spread, its slopes times spread
        points = seen.weights.double() @ basis / spread
        samples = Samples(points, seen.values, seen.slopes_along(basis) * spread)
        # a neuron that hardly reaches the output has a slope that is mostly rounding
        size = seen.pattern.abs()
        samples = samples.rows((size > _REACH * size.median()).nonzero()[:, 0])
        if homogeneous(activation):
            opened = solve_gates(activation, samples, order, key)
            worst = {"spread": float(opened.spreads.max())}
            return opened.directions @ basis.T, -opened.spreads.double(), worst
        fit = solve_smooth(activation, samples, order, 1.0, key)
        confidence = torch.full((len(fit.records),), -fit.misfit, dtype=torch.float64)
        return fit.records @ basis.T / spread, confidence, {"misfit": fit.misfit}

    def _refused(self, rows: Tensor, why: NotApplicable) -> Batch:
        empty = torch.zeros(len(rows), dtype=torch.float64)
        return Batch(rows.reshape(-1, *self.view.shape), empty, {}, refused=why)
