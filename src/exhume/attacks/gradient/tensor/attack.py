"""The tensor method of Wang23: every record of a batch from dL/da alone.

    g_j = dL/da_j = sum_i r_i sigma(w_j · x_i),      T_p = 1/m sum_j g_j He_p(w_j) -> sum_i r_i c_p x_i^{(p)}

1. Orders 0 and 1 are taken out of g by least squares (ours: they are noise to what follows).
2. The span V (d, B): eigenvectors of T_2, or of T_3 where T_2 vanishes; B by the edge of the noise.
3. T_p(V, ..., V) inside it, p = 3 or 4 by the activation's Hermite coefficients; decomposed into B terms.
4. x_i = V u_i, of the norm that the attacker assumes; signs by T_1 for p = 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.attacks.gradient.reading import TwoLast, query_parameters, two_last
from exhume.attacks.gradient.span.basis import deflate, deviation, project, span_of_moments
from exhume.attacks.gradient.span.regression import Samples, fit_moments
from exhume.attacks.gradient.span.signs_and_norms import odd
from exhume.attacks.gradient.span.solve import directions_of
from exhume.attacks.gradient.tensor.decompose import decompose
from exhume.attacks.gradient.tensor.hermite import coefficients, order_for
from exhume.contract import Architecture, Key, Knowledge, NotApplicable, Progress, Store, silent

__all__ = ["TensorAttack"]

_FEWEST = 2  # neurons an input: with fewer, taking out order 1 leaves nothing to go by


@dataclass(frozen=True)
class TensorAttack:
    """Reconstruct all records behind dL/da of the last layer; dL/dW is not looked at.

    Sees: `Gradient`, its last layer, at parameters of `query`.
    Assumes: the architecture; Gaussian hidden weights; about unit norm w_j · x; linearly independent records.
    Guarantees: an error of order sqrt(d/m) (`expected_error`); the batch size is counted, up to `largest`.
    An odd activation leaves the sign to a prior. Norms are `norm` for all records, not measured.
    Reference: Wang23. The least squares in place of averages are ours.
    """

    spread: float = 1.0  # deviation of the queried weights; Wang23: 1
    norm: float = 1.0  # of every record; Wang23: 1
    largest: int = 16  # batch size that can be found
    method: str = "joint"  # see decompose.METHODS
    nonnegative: bool = True  # records are images: the sign where nothing else gives it

    def query(self, architecture: Architecture, key: Key) -> Tensor:
        return query_parameters(architecture, self.spread, key)

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        view = two_last(knowledge.architecture)
        invert, stage = _Inversion(self, view, key).one, "decomposing moments"
        network = view.architecture
        return EachGradient(view.shape, invert, "the tensor attack", stage, progress, network)


@dataclass(frozen=True, eq=False)
class _Inversion:
    attack: TensorAttack
    view: TwoLast
    key: Key

    def one(self, gradient: Tensor, parameters: Tensor, index: int) -> Batch:
        """What one gradient gives: all records, or what can be identified and why not more."""
        seen, dtype = self.view.observe(gradient, parameters, index), gradient.dtype
        spread = deviation(seen.weights)
        weights = seen.weights if spread == 1 else seen.weights / spread
        size = spread * self.attack.norm
        values, slope = deflate(weights, seen.values)
        m, d = weights.shape
        observed = {"expected_error": math.sqrt(d / m)}
        c = coefficients(self.view.activation, size)
        even = abs(c[2]) > 0.05 * max(abs(value) for value in c)
        try:
            order = order_for(self.view.activation, size)
        except NotApplicable as why:
            rows = slope[None] if not even else self._span(weights, values, slope, even).T
            return self._batch(rows, dtype, observed, why)
        try:
            if m < _FEWEST * d:
                raise NotApplicable(f"{m} neurons for {d} inputs: too few neurons", ever=True)
            basis = self._span(weights, values, slope, even)
        except NotApplicable as why:
            return self._batch(slope.new_zeros(0, d), dtype, observed, why)
        points = project(weights, basis)
        samples = Samples(points, values + points @ (basis.T @ slope))
        moments = fit_moments(samples, order)
        terms = decompose(moments[order], method=self.attack.method, key=self.key.fold("terms"))
        units = directions_of(self.view.activation, terms, moments) @ basis.T
        if self.view.biased:
            units = units / units[:, -1:]
        elif odd(self.view.activation) and self.attack.nonnegative:
            units = units * torch.where(units.sum(1) < 0, -1.0, 1.0).to(units)[:, None]
        observed |= {"batch_size": float(len(units)), "order": float(order), "misfit": terms.misfit}
        return self._batch(units, dtype, observed, None, -terms.misfit)

    def _span(self, weights: Tensor, values: Tensor, slope: Tensor, even: bool) -> Tensor:
        key = self.key.fold("span")
        return span_of_moments(
            weights, values, slope, even=even, largest=self.attack.largest, key=key
        )

    def _batch(
        self,
        rows: Tensor,
        dtype: torch.dtype,
        observed: dict[str, float],
        why: NotApplicable | None,
        confidence: float = 0.0,
    ) -> Batch:
        scale = 1.0 if self.view.biased or why else self.attack.norm
        records = (scale * rows[:, : self.view.inputs]).to(dtype).reshape(-1, *self.view.shape)
        sure = torch.full((len(rows),), confidence, dtype=torch.float64)
        return Batch(records, sure, observed, refused=why)
