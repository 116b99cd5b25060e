"""Descent on the stationarity residual over candidates and their multipliers.

The candidates are C = Y diag(spread): steps in Y are of the size that inputs vary in each direction. Rates
fall along half a cosine. Two optimisers: momentum as published, and Adam.

The squared residual and its gradient are derived by hand (Buzaglo23, eq. 6):

    L(C, lambda) = sum_l w_l || W_l - sum_i lambda_i g_{l,i} h_{l-1,i}ᵀ ||²  /  sum_l w_l ||W_l||²

The unknown inputs live in the row span of the first layer, x_i = C_i V with orthonormal rows V (r, d): the
first layer becomes W1 Vᵀ (k, r), and what of W1 lies outside V is a constant. The bias is one more column
whose input is 1. A kink's derivative (ReLU's) is sigmoid(alpha z) wherever a derivative is taken, as in the
authors' code; the forward pass is the true one. Smooth activations have their own. Each of the k x k products
is done once forward and once backward, and nothing lives in pixel space but `Prior`, what is known of images
beforehand:

    box   sum over pixels of (|x| - 1)_+²         inputs less a mean lie in [-1, 1] (authors' code)
    tv    sum over neighbours of sqrt(diff² + eps)   smooth images

Besides, attacks bound the contrast, ||x|| <= c·sqrt(d), which stops the search from trading large inputs
against small multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from exhume.models.heads import Head
from exhume.models.matrices import Matrices
from exhume.train.margin import Others, competitors, directions

_BETAS, _TINY, _LAST = (0.9, 0.999), 1e-8, 0.02
_DIVERGED = 1e6  # a residual of so many times the weights, or none at all
_EPSILON = 1e-3  # rounds the corner of the total variation


@dataclass(frozen=True)
class SearchDescent:
    method: Literal["adam", "momentum"] = "adam"
    steps: int = 300
    rate: float = 0.05  # of the candidates
    multiplier_rate: float = 0.05
    falling: bool = True  # rates fall along half a cosine; the published ones are constant


@dataclass(frozen=True, eq=False)
class RestartRun:
    """One restart."""

    inputs: Tensor  # (m, d), centred as the network takes them
    labels: Tensor  # (m,)
    explained: Tensor  # (m,)
    loss: float
    diverged: float = -1.0  # the step at which it did; -1: never
    records: float = 0.0  # training records it assumed
    seconds: float = 0.0  # that it took when it was computed


@dataclass(frozen=True, eq=False)
class Start:
    """Where a descent begins, and the shape of the space it moves in."""

    coordinates: Tensor  # (m, r)
    raw: Tensor  # (m,) what the multipliers are made of
    spread: Tensor  # (r,)
    multiplier: Literal["log", "squared", "free"] = "log"
    """lambda / share: exp(raw); raw² + floor; raw."""
    floor: float = 0.0
    share: float = 1.0
    largest: float = math.inf  # norm of a candidate
    absolute: bool = False  # the residual itself instead of its share of the weights


@dataclass(frozen=True, eq=False)
class DescentEnd:
    coordinates: Tensor  # (m, r)
    multipliers: Tensor  # (m,)
    margins: Tensor  # (m,)
    loss: float  # relative squared residual
    diverged: float = -1.0  # step at which it stopped being finite: this is from before; -1: never

    def run(self, span: RowSpan, labels: Tensor, records: int | float) -> RestartRun:
        """As a restart that assumed so many training records."""
        explained = self.multipliers * self.margins
        inputs = span.inputs(self.coordinates)
        return RestartRun(inputs, labels, explained, self.loss, self.diverged, float(records))


def descend(
    problem: StationarityResidual,
    start: Start,
    descent: SearchDescent,
    *,
    prior: Prior,
    shape: tuple[int, ...],
    progress: Callable[[int], None],
) -> DescentEnd:
    raw, scaled = start.raw.clone(), start.coordinates / start.spread
    kept, diverged = (raw, scaled), -1.0
    rates = [descent.rate, descent.multiplier_rate]
    update = stepper(descent.method, [scaled, raw], rates)
    for step in range(descent.steps):
        lam, slope = _multipliers(start, raw)
        coordinates = scaled * start.spread
        value = problem.at(coordinates, lam)
        if not value.loss < _DIVERGED:
            (raw, scaled), diverged = kept, float(step)
            break
        kept = (raw.clone(), scaled.clone())
        by_c, by_lambda = value.coordinates, value.multipliers
        if start.absolute:
            by_c, by_lambda = by_c * problem.norm, by_lambda * problem.norm
        if prior:
            _, pull = prior.at(problem.span.inputs(coordinates), shape)
            by_c = by_c + pull @ problem.span.basis.T
        update([by_c * start.spread, by_lambda * slope], fall(descent, step))
        if start.largest < math.inf:
            norms = (scaled * start.spread).norm(dim=1, keepdim=True)
            scaled.mul_((start.largest / norms).clamp(max=1))
        progress(step + 1)
    lam, _ = _multipliers(start, raw)
    last = problem.at(scaled * start.spread, lam)
    return DescentEnd(scaled * start.spread, lam, last.margins, last.loss, diverged)


def _multipliers(start: Start, raw: Tensor) -> tuple[Tensor, Tensor]:
    """lambda and d lambda / d raw."""
    if start.multiplier == "log":
        lam, slope = raw.exp(), raw.exp()
    elif start.multiplier == "squared":
        lam, slope = raw.square() + start.floor, 2 * raw
    else:
        lam, slope = raw, torch.ones_like(raw)
    return start.share * lam, start.share * slope


def fall(descent: SearchDescent, step: int) -> float:
    """The share of the rate at a step, counted from 0."""
    if not descent.falling:
        return 1.0
    return _LAST + (1 - _LAST) * 0.5 * (1 + math.cos(math.pi * (step + 1) / descent.steps))


def stepper(
    method: Literal["adam", "momentum"],
    parameters: list[Tensor],
    rates: list[float],
    tiny: float = _TINY,
) -> Callable[[list[Tensor], float], None]:
    """A function of the gradients and the share of the rate: one step, in place."""
    first = [torch.zeros_like(tensor) for tensor in parameters]
    second = [torch.zeros_like(tensor) for tensor in parameters]
    done = 0

    def adam(gradients: list[Tensor], share: float) -> None:
        nonlocal done
        done += 1
        (b1, b2), each = _BETAS, zip(parameters, first, second, gradients, rates, strict=True)
        for tensor, mean, square, gradient, rate in each:
            mean.lerp_(gradient, 1 - b1)
            square.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
            size = (square / (1 - b2**done)).sqrt_().add_(tiny)
            tensor.addcdiv_(mean, size, value=-share * rate / (1 - b1**done))

    def momentum(gradients: list[Tensor], share: float) -> None:
        for tensor, velocity, gradient, rate in zip(
            parameters, first, gradients, rates, strict=True
        ):
            velocity.mul_(_BETAS[0]).add_(gradient)
            tensor.sub_(velocity, alpha=share * rate)

    return adam if method == "adam" else momentum


@dataclass(frozen=True, eq=False)
class RowSpan:
    """The row span of the first layer, cut to its leading directions."""

    basis: Tensor  # V (r, d), orthonormal rows
    values: Tensor  # (r,) singular values
    network: Matrices  # its first layer is W1 Vᵀ (k, r)
    outside: float  # ||W1||² outside the span

    def inputs(self, coordinates: Tensor) -> Tensor:
        """(m, r) to (m, d)."""
        return coordinates @ self.basis


def span_of(network: Matrices, rank: int | Callable[[Tensor], int]) -> RowSpan:
    """The leading right singular vectors of the first layer: so many, or as many as its values say."""
    _, values, rows = torch.linalg.svd(network.first.double(), full_matrices=False)
    rank = rank if isinstance(rank, int) else rank(values)
    basis = rows[:rank].to(network.first.dtype)
    inside = replace(network, first=network.first @ basis.T)
    outside = float(values[rank:].square().sum())
    return RowSpan(basis, values[:rank].to(network.first.dtype), inside, outside)


@dataclass(frozen=True, eq=False)
class Value:
    loss: float
    coordinates: Tensor  # dL/dC, (m, r)
    multipliers: Tensor  # dL/dlambda, (m,)
    margins: Tensor  # (m,) Phi_y - sum_j p_j Phi_j at the candidates


@dataclass(frozen=True, eq=False)
class StationarityResidual:
    span: RowSpan
    labels: Tensor  # (m,)
    head: Head = "multiclass"
    others: Others = "softmax"
    alpha: float = 50.0
    weights: tuple[float, ...] = (1.0,)  # of the layers, first to last; those not named have 0
    columns: Tensor | None = None  # (r+1,) weights of the first layer's columns, bias last; None: 1

    @property
    def layer_weights(self) -> tuple[float, ...]:
        later = len(self.span.network.later)
        return (*self.weights, *(0.0,) * (1 + later - len(self.weights)))

    @property
    def target(self) -> Tensor:
        """(k, r+1): the first layer and its bias, columns weighted."""
        network = self.span.network
        return self.weighted(torch.cat([network.first, network.bias[:, None]], 1))

    def weighted(self, extended: Tensor) -> Tensor:
        return extended if self.columns is None else extended * self.columns

    @property
    def norm(self) -> float:
        """What the residual is relative to."""
        (one, *later), network = self.layer_weights, self.span.network
        first = self.span.outside + float(self.target.square().sum())
        parts = [w * float(m.square().sum()) for w, m in zip(later, network.later, strict=True)]
        return one * first + sum(parts)

    def at(self, coordinates: Tensor, multipliers: Tensor) -> Value:
        """(m, r), (m,)."""
        return _Pass(self, coordinates, multipliers).value()


class _Pass:
    """One evaluation: forward, signals back, residuals, and the way back through both."""

    def __init__(
        self, problem: StationarityResidual, coordinates: Tensor, multipliers: Tensor
    ) -> None:
        network = problem.span.network
        self.problem, self.network = problem, network
        self.extended = problem.weighted(
            torch.cat([coordinates, torch.ones_like(coordinates[:, :1])], 1)
        )
        self.multipliers = multipliers
        self.entering, self.outputs = network.forward(coordinates)
        self.active = [network.act.apply(z) for z in self.entering]
        gated = [
            network.act.gated(z, y, problem.alpha)
            for z, y in zip(self.entering, self.active, strict=True)
        ]
        self.gates, self.curves = [one for one, _ in gated], [two for _, two in gated]
        self.pull = directions(problem.head, self.outputs, problem.labels, problem.others)
        self.loss = 0.0
        self.d_multipliers = torch.zeros_like(multipliers)
        self._signals()

    def _signals(self) -> None:
        """g of each layer, from the outputs back: `signals[l]` of layer l, `ungated[l]` before its gate."""
        self.signals, self.ungated = [self.pull], list[Tensor]()
        for matrix, gate in zip(reversed(self.network.later), reversed(self.gates), strict=True):
            self.ungated.insert(0, self.signals[0] @ matrix)
            self.signals.insert(0, self.ungated[0] * gate)

    def _layer(self, layer: int, target: Tensor, feeding: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's residual; return dL/d(its signal) and dL/d(what feeds it)."""
        weight = self.problem.layer_weights[layer] / self.problem.norm
        scaled = self.multipliers[:, None] * self.signals[layer]
        residual = torch.addmm(target, scaled.T, feeding, beta=-1)
        self.loss += weight * float(residual.square().sum())
        back = (feeding @ residual.T).mul_(2 * weight)
        self.d_multipliers += (back * self.signals[layer]).sum(1)
        return back.mul_(self.multipliers[:, None]), (scaled @ residual).mul_(2 * weight)

    def value(self) -> Value:
        problem, network = self.problem, self.network
        weights = problem.layer_weights
        self.loss = weights[0] * problem.span.outside / problem.norm
        d_signal, d_feeding = self._layer(0, problem.target, self.extended)
        d_entering = []  # of each activation, through the signals
        d_active: list[Tensor | None] = []
        for layer, (matrix, gate) in enumerate(
            zip(network.later, self.gates, strict=True), start=1
        ):
            d_entering.append((d_signal * self.ungated[layer - 1]).mul_(self.curves[layer - 1]))
            onwards = (d_signal * gate) @ matrix.T
            fed = None
            if weights[layer]:
                own, fed = self._layer(layer, matrix, self.active[layer - 1])
                onwards += own
            d_signal = onwards
            d_active.append(fed)
        self._through_forward(d_signal, d_entering, d_active)
        gradient = problem.weighted(d_feeding)[:, :-1] + d_entering[0] @ network.first
        margins = (self.pull * self.outputs).sum(1)
        return Value(self.loss, gradient, self.d_multipliers, margins)

    def _through_forward(
        self, d_pull: Tensor, d_entering: list[Tensor], d_active: list[Tensor | None]
    ) -> None:
        """The pass down from the outputs, which matter only through the softmax over the wrong classes."""
        moving = self.problem.head == "multiclass" and self.problem.others == "softmax"
        d_next = None
        if moving:
            p = competitors(self.outputs, self.problem.labels, "softmax")
            d_next = p * ((p * d_pull).sum(1, keepdim=True) - d_pull)
        for layer in reversed(range(len(d_entering))):
            fed = d_active[layer]
            if d_next is not None:
                through = d_next @ self.network.later[layer]
                fed = through if fed is None else fed + through
            if fed is not None:
                d_entering[layer] += fed * self.gates[layer]
            # the last activation's own term moves the layers below it whether or not the outputs do
            d_next = d_entering[layer]


@dataclass(frozen=True)
class Prior:
    box: float = 0.0  # weight; Buzaglo23: 1
    tv: float = 0.0  # weight

    def __bool__(self) -> bool:
        return bool(self.box or self.tv)

    def at(self, inputs: Tensor, shape: tuple[int, ...]) -> tuple[float, Tensor]:
        """(m, d) centred inputs: the penalty and its gradient (m, d)."""
        over = (inputs.abs() - 1).clamp_min(0)
        value = self.box * float(over.square().sum())
        gradient = (2 * self.box) * over * inputs.sign()
        if self.tv and len(shape) == 3:
            images = inputs.reshape(-1, *shape)
            slope = torch.zeros_like(images)
            for axis in (2, 3):
                difference = images.diff(dim=axis)
                length = (difference.square() + _EPSILON**2).sqrt()
                value += self.tv * float(length.sum())
                pull = self.tv * difference / length
                size = images.shape[axis]
                slope.narrow(axis, 1, size - 1).add_(pull)
                slope.narrow(axis, 0, size - 1).sub_(pull)
            gradient = gradient + slope.flatten(1)
        return value, gradient
