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
from exhume.attacks.gradient.span.polish import polish
from exhume.attacks.gradient.span.regression import Samples, fit_moments
from exhume.attacks.gradient.span.signs_and_norms import odd
from exhume.attacks.gradient.span.solve import directions_of
from exhume.attacks.gradient.tensor.decompose import Terms, decompose, decompose_jointly
from exhume.attacks.gradient.tensor.hermite import coefficients, order_for
from exhume.attacks.gradient.tensor.rows import Rows
from exhume.attacks.gradient.tensor.spans import (
    deflate,
    deviation,
    project,
    span_of_joint_moments,
    span_of_moments,
)
from exhume.core.contract import (
    Architecture,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)

__all__ = ["TensorAttack"]

_OUTPUTS = 16  # functions that are decomposed jointly, at most
_NUMBERS = 1 << 25  # of the Jacobian of the fit, at most
_EQUATIONS, _STEPS = 4, 30  # neurons an unknown of the fit, at least; and its steps
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
    jointly: bool = False  # C outputs are C tensors with common parts; else made one function
    refined: bool = False  # go on from the estimate with a fit of dL/da (Wang23's last step)

    def __post_init__(self) -> None:
        if self.jointly and self.refined:
            raise ExhumeError("jointly, refined: the fit is of one function; say one of the two")

    def query(self, architecture: Architecture, key: Key) -> Tensor:
        return query_parameters(architecture, self.spread, key)

    def records_behind(
        self, architecture: Architecture, weights: Rows, outputs: Tensor, key: Key
    ) -> Tensor:
        """(b, *shape) from (c, m) dL/da at hidden weights of N(0, 1), which may be drawn block by block.

        For networks whose weights fill the memory; raises `NotApplicable`.
        """
        found = _Inversion(self, two_last(architecture), key)
        batch = found.behind(weights, outputs, self.norm, weights.dtype)
        if batch.refused is not None:
            raise batch.refused
        return batch.records

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
        weights, outputs = self._functions(gradient, parameters, index)
        spread = deviation(weights)
        weights = weights if spread == 1 else weights / spread
        return self.behind(weights, outputs, spread * self.attack.norm, gradient.dtype)

    def behind(self, weights: Rows, outputs: Tensor, size: float, dtype: torch.dtype) -> Batch:
        """What (c, m) outputs give: all records, or what can be identified and why not more."""
        fits = [deflate(weights, each) for each in outputs]
        values, slopes = (torch.stack(parts) for parts in zip(*fits, strict=True))
        means = outputs.mean(1)
        if len(outputs) > 1:
            axes = _principal(values)
            values, slopes, means = axes.T @ values, axes.T @ slopes, axes.T @ means
        m, d = weights.shape
        observed = {"expected_error": math.sqrt(d / m)}
        c = coefficients(self.view.activation, size)
        even = abs(c[2]) > 0.05 * max(abs(value) for value in c)
        try:
            order = order_for(self.view.activation, size)
        except NotApplicable as why:
            rows = slopes[:1] if not even else self._span(weights, values, slopes, even).T
            return self._batch(rows, dtype, observed, why)
        try:
            if m < _FEWEST * d:
                raise NotApplicable(f"{m} neurons for {d} inputs: too few neurons", ever=True)
            basis = self._span(weights, values, slopes, even)
        except NotApplicable as why:
            return self._batch(slopes.new_zeros(0, d), dtype, observed, why)
        points = project(weights, basis)
        moments = [
            fit_moments(Samples(points, mean + each + points @ (basis.T @ slope)), order)
            for mean, each, slope in zip(means, values, slopes, strict=True)
        ]
        terms = self._decomposed([each[order] for each in moments])
        units = directions_of(self.view.activation, terms, *moments) @ basis.T
        if self.attack.refined:
            units = self._refined(weights, outputs[0], size * units) / size
        if self.view.biased:
            units = units / units[:, -1:]
        elif odd(self.view.activation) and self.attack.nonnegative:
            units = units * torch.where(units.sum(1) < 0, -1.0, 1.0).to(units)[:, None]
        observed |= {"batch_size": float(len(units)), "order": float(order), "misfit": terms.misfit}
        return self._batch(units, dtype, observed, None, -terms.misfit)

    def _refined(self, weights: Rows, values: Tensor, start: Tensor) -> Tensor:
        """(b, d) where dL/da fits best, its slopes r_i fitted along; the start, where equations are few."""
        rows = min(len(weights), _NUMBERS // start.numel())
        if not isinstance(weights, Tensor) or rows < _EQUATIONS * start.numel():
            return start
        samples = Samples(weights[:rows].double(), values[:rows])
        return polish(self.view.activation, samples, start, _STEPS).records

    def _functions(self, gradient: Tensor, parameters: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """(m, d) weights, and (c, m) what is seen of them: each output, or all combined into one."""
        if self.attack.jointly:
            return self.view.last(gradient, parameters, index)
        seen = self.view.observe(gradient, parameters, index)
        return seen.weights, seen.values[None]

    def _decomposed(self, tensors: list[Tensor]) -> Terms:
        key = self.key.fold("terms")
        if len(tensors) > 1:
            return decompose_jointly(torch.stack(tensors), key=key)
        return decompose(tensors[0], method=self.attack.method, key=key)

    def _span(self, weights: Rows, values: Tensor, slopes: Tensor, even: bool) -> Tensor:
        key, largest = self.key.fold("span"), self.attack.largest
        if len(values) > 1:
            return span_of_joint_moments(
                weights, values, slopes, even=even, largest=largest, key=key
            )
        return span_of_moments(weights, values[0], slopes[0], even=even, largest=largest, key=key)

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


def _principal(values: Tensor) -> Tensor:
    """(c, k) axes along which functions (c, m) are uncorrelated, the largest first."""
    axes: Tensor = torch.linalg.eigh(values @ values.T)[1].flip(1)[:, :_OUTPUTS]
    return axes
