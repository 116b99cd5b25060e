"""The squared stationarity residual and its gradient, derived by hand (Buzaglo23, eq. 6).

    L(C, lambda) = sum_l w_l || W_l - sum_i lambda_i g_{l,i} h_{l-1,i}ᵀ ||²  /  sum_l w_l ||W_l||²

The unknown inputs live in the row span of the first layer, x_i = C_i V with orthonormal rows V (r, d):
the first layer becomes W1 Vᵀ (k, r), and what of W1 lies outside V is a constant. The bias is one
more column whose input is 1. A kink's derivative (ReLU's) is sigmoid(alpha z) wherever a derivative is taken,
as in the authors' code; the forward pass is the true one. Smooth activations have their own.

A `create_graph` backward would form every layer's gradient in pixel space and build a graph of twice the
size; here each of the k x k products is done once forward and once backward. Layers of weight 0 cost
nothing beyond the signal that passes through them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.models.heads import Head
from exhume.models.matrices import Matrices
from exhume.train.margin import Others, competitors, directions

__all__ = ["Residual", "Span", "Value", "span_of"]


@dataclass(frozen=True, eq=False)
class Span:
    """The row span of the first layer, cut to its leading directions."""

    basis: Tensor  # V (r, d), orthonormal rows
    values: Tensor  # (r,) singular values
    network: Matrices  # its first layer is W1 Vᵀ (k, r)
    outside: float  # ||W1||² outside the span

    def inputs(self, coordinates: Tensor) -> Tensor:
        """(m, r) to (m, d)."""
        return coordinates @ self.basis


def span_of(network: Matrices, rank: int | Callable[[Tensor], int]) -> Span:
    """The leading right singular vectors of the first layer: so many, or as many as its values say."""
    _, values, rows = torch.linalg.svd(network.first.double(), full_matrices=False)
    rank = rank if isinstance(rank, int) else rank(values)
    basis = rows[:rank].to(network.first.dtype)
    inside = replace(network, first=network.first @ basis.T)
    outside = float(values[rank:].square().sum())
    return Span(basis, values[:rank].to(network.first.dtype), inside, outside)


@dataclass(frozen=True, eq=False)
class Value:
    loss: float
    coordinates: Tensor  # dL/dC, (m, r)
    multipliers: Tensor  # dL/dlambda, (m,)
    margins: Tensor  # (m,) Phi_y - sum_j p_j Phi_j at the candidates


@dataclass(frozen=True, eq=False)
class Residual:
    span: Span
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

    def __init__(self, problem: Residual, coordinates: Tensor, multipliers: Tensor) -> None:
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
