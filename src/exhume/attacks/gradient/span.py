"""Every record of a batch from dL/da and dL/dW of a two-layer network: near exact, batch size not given.

    f_c(x) = sum_j a_cj sigma(w_j · x + b_j)

A first-layer bias is one more input that is always 1. C outputs are combined by alpha, the pattern of the
queried a_cj = alpha_c / m, into one function F with values sum_c alpha_c dL/da_cj and, from dL/dW, slopes.
dL/dW = sum_i r_i a_j sigma'(w_j · x_i) x_i has rank B and gives the span of the records exactly. Inside it F
is seen at m points, a function of B variables, and what is left is a small fit. A first decomposition starts
from the moments alone. If the fit it leads to leaves something over, that fit becomes a control variate: the
moments of the remainder are regressed (their noise shrinks with the remainder), the exact moments of the fit
are added, and the sum is decomposed afresh.

F leaves signs, norms and labels open: r_i = alpha · dl/df(x_i, y_i) per record, 1/B of it for a mean loss.

- A biased first layer settles both: the last coordinate of every record is 1.
- ReLU is homogeneous: only r_i |x_i| is seen; the known loss gives the norm back, by one equation a record.
- An odd activation leaves the sign open. With three outputs or more, the residual of a softmax has one
  negative entry, the label's. With one output (x, y) and (-x, 1 - y) give identical gradients, and only a
  prior helps: images are not negative.

Of a deeper network these records are the features that enter its last two layers. Where the layers below are
known, `decode` goes on: min_x || phi(x) - h ||^2, phi the layers below at the queried parameters, by
Levenberg-Marquardt, one record at a time. Exact where phi is one to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from exhume.attacks.gradient.decompose import Terms, decompose
from exhume.attacks.gradient.moments import (
    SampleFit,
    Samples,
    best_strengths,
    coefficients,
    fit_moments,
    order_for,
    polish,
)
from exhume.attacks.gradient.piecewise import CERTAIN, Gates, Opened
from exhume.attacks.releases import BatchAnswer, EachGradient
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
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.models.two_layer import TwoLayer
from exhume.train.least_squares import fit_damped, least_norm
from exhume.train.local import half_precision

_REACH = 0.1  # of the median outer weight
EXACT = 1e-4  # misfit below which a fit is the answer: rounding of fp32 leaves 1e-7 to 1e-6
_ROUNDS = 6  # of decomposition and fit
_LARGEST = 40  # records for which moments of order 4 are formed: B^4 numbers
_SIGNS = 16  # records whose signs are all tried
_NO_SECOND = 1e-6  # c_2 of an odd activation, up to quadrature
_FEWEST, _EACH = 320, 20  # neurons used as equations, at least and a record, of B^2 + B unknowns
_ITERATIONS = 50  # for the norms
_GAP = 3.0  # singular values drop by this factor at least after the last record; clean ones by 1e4 and more
_MOST = 256  # records: where no end of the spectrum is in sight, it is looked for up to here
_RANK_ONE = 1e-4  # relative: outer weights that differ more are no multiples of one pattern
_STEPS = 60  # of the way below


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
        invert, stage = _SpanInversion(self, view, key).invert, "inverting gradients"
        return EachGradient(
            view.shape, invert, "the span attack", stage, progress, view.architecture
        )


@dataclass(frozen=True, eq=False)
class _SpanInversion:
    attack: SpanAttack
    view: TwoLast
    key: Key

    def invert(self, gradient: Tensor, parameters: Tensor, index: int) -> BatchAnswer:
        seen, dtype = self.view.observe(gradient, parameters, index), gradient.dtype
        basis, _ = span_of_slopes(seen.raw_slopes, self.key.fold("span"))
        try:
            order = order_for(self.view.activation)
            wide = basis.shape[1]
            if wide > self.attack.largest and not homogeneous(self.view.activation):
                raise NotApplicable(
                    f"dL/dW spans {wide} directions; the fit is for at most {self.attack.largest} records, "
                    "and noise or rounding of the update widens the span",
                    ever=True,
                )
        except NotApplicable as why:  # the span itself is all that can be told
            rows = basis.T[:, : self.view.inputs].to(dtype).reshape(-1, *self.view.shape)
            return BatchAnswer(rows, torch.zeros(len(rows), dtype=torch.float64), refused=why)
        records, confidence, certificate = self._solved(seen, basis, order)
        records, labels = self._settled(seen, records)
        bar = CERTAIN if "spread" in certificate else EXACT
        return BatchAnswer(
            records.to(dtype).reshape(len(records), *self.view.shape),
            confidence,
            certificate | {"batch_size": float(len(records)), "order": float(order)},
            labels,
            complete=bool((-confidence < bar).all()),
        )

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
        fit = solve_smooth(activation, samples, order, key)
        confidence = torch.full((len(fit.records),), -fit.misfit, dtype=torch.float64)
        return fit.records @ basis.T / spread, confidence, {"misfit": fit.misfit}

    def _settled(self, seen: Observation, records: Tensor) -> tuple[Tensor, Tensor]:
        """(b, d) records with their signs and norms, and labels (b,).

        records: (b, d) with the bias coordinate, if any; of unit norm for homogeneous activations.
        """
        activation, biased = self.view.activation, self.view.biased
        if biased:
            last = records[:, -1:]
            records = torch.cat([records[:, :-1] / last, torch.ones_like(last)], 1)
        columns = activation.apply(seen.weights.double() @ records.T)
        residuals = least_norm(columns, seen.outputs.T)  # (b, c) dl/df of each record
        if not biased and odd(activation):  # both may change their signs together
            if len(seen.outputs) >= 3:
                largest = residuals.gather(1, residuals.abs().argmax(1, keepdim=True))[:, 0]
                flip = largest > 0
            else:
                flip = (records.sum(1) < 0) & self.attack.nonnegative
            signs = torch.where(flip, -1.0, 1.0).to(records.dtype)
            records, residuals = records * signs[:, None], residuals * signs[:, None]
        if homogeneous(activation) and not biased:
            share = len(records) if self.attack.averaged else 1
            records = records * _norms(activation, seen, records, residuals * share)[:, None]
        one = len(seen.outputs) == 1
        labels = (residuals[:, 0] < 0).long() if one else residuals.argmin(1)
        return records[:, :-1] if biased else records, labels


def solve_smooth(activation: Activation, samples: Samples, order: int, key: Key) -> SampleFit:
    """The best fit found; its `misfit` says whether it is the answer."""
    few = samples.rows(slice(0, max(_FEWEST, _EACH * samples.points.shape[1])))
    best: SampleFit | None = None
    for turn in range(_ROUNDS):
        moments = _moments(activation, samples, order, best)
        terms = decompose(moments[order], refined=True, key=key.fold("turn", turn))
        fit = polish(activation, few, directions_of(activation, terms, moments))
        if best is None or fit.misfit < best.misfit:
            best = fit
        if best.misfit < EXACT:
            break
    assert best is not None  # there is at least one turn
    return best


def solve_gates(activation: Activation, samples: Samples, order: int, key: Key) -> Opened:
    """Solve for piecewise linear activations: by recurring steps, else with gates in place of the fit."""
    gates, best = Gates(samples), None
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    below, above = activation.slope(ends, activation.apply(ends))
    drop = float(above - below)  # sigma' of an open gate less that of a closed one
    gates.look_for_steps(key.fold("steps"))
    if gates.complete or samples.points.shape[1] > _LARGEST:
        return gates.opened(drop)
    for turn in range(_ROUNDS):
        moments = _moments(activation, samples, order, best)
        terms = decompose(moments[order], key=key.fold("turn", turn))
        gates.look_near(directions_of(activation, terms, moments))
        opened = gates.opened(drop)
        if gates.complete:
            break
        strengths = best_strengths(activation, samples, opened.directions)
        best = SampleFit(opened.directions, strengths, 1.0)
    return gates.opened(drop)


def _moments(
    activation: Activation, samples: Samples, order: int, fit: SampleFit | None
) -> list[Tensor]:
    if fit is None:
        return fit_moments(samples, order)
    z = samples.points @ fit.records.T
    height = activation.apply(z)
    slopes = samples.slopes
    if slopes is not None:
        slopes = slopes - (activation.slope(z, height) * fit.strengths) @ fit.records
    left = Samples(samples.points, samples.values - height @ fit.strengths, slopes)
    return [
        part + moment_of(activation, fit.records, fit.strengths, p)
        for p, part in enumerate(fit_moments(left, order))
    ]


def moment_of(activation: Activation, records: Tensor, strengths: Tensor, order: int) -> Tensor:
    """T_p = sum_i r_i c_p(|m_i|) (m_i / |m_i|)^{(p)}, exactly."""
    norms = records.norm(dim=1).clamp_min(1e-12)
    c = torch.tensor(
        [coefficients(activation, float(n))[order] for n in norms], dtype=records.dtype
    )
    powers = (strengths * c)[:, None]
    for _ in range(order):
        powers = (powers[:, :, None] * (records / norms[:, None])[:, None, :]).flatten(1)
    return powers.sum(0).reshape((records.shape[1],) * order)


def directions_of(activation: Activation, terms: Terms, *outputs: list[Tensor]) -> Tensor:
    """(b, q) with the signs that the decomposed moments leave open. outputs: the moments of each.

    Order 4 gives the sign of r_i, and T_1 = sum_i r_i c_1 u_i then that of u_i. Order 3 gives the sign of
    r_i u_i, and T_2 = sum_i r_i c_2 u_i u_i^T that of r_i; an odd activation has no T_2 and leaves it
    open: (x, r) and (-x, -r) are the same function. With a constant, as the sigmoid's half, they are not:
    T_0 = c_0 sum_i r_i.
    """
    order, c, units = len(outputs[0]) - 1, coefficients(activation), terms.directions
    if order == 3 and abs(c[2]) < _NO_SECOND:
        if abs(c[0]) < _NO_SECOND or len(units) > _SIGNS:
            return units
        third = terms.weights.reshape(len(outputs), -1) / c[3]
        first = (
            torch.stack([least_norm(units.T, each[1][:, None])[:, 0] for each in outputs]) / c[1]
        )
        # c_1 grows as the norm and c_3 as its cube: their ratio is the square of the usual norm
        norm = float((third / first).abs().median().sqrt())
        constants = torch.stack([moments[0] for moments in outputs]) / c[0]
        bits = torch.arange(2 ** len(units))[:, None] >> torch.arange(len(units))
        every = 1.0 - 2.0 * (bits & 1).to(
            first
        )  # the signs whose sums come closest to the constants
        away = (every @ (first / norm).T - constants).square().sum(1)
        return units * every[int(away.argmin())][:, None]
    agree = c[1] * c[4] if order == 4 else c[2] * c[3]
    votes = torch.zeros_like(units[:, 0])
    for weights, moments in zip(terms.weights.reshape(len(outputs), -1), outputs, strict=True):
        if order == 4:
            others = least_norm(units.T, moments[1][:, None])[:, 0]
        else:  # in T_2
            values = ((units @ moments[2]) * units).sum(1)
            others = least_norm((units @ units.T).square(), values[:, None])[:, 0]
        votes += weights * others
    signs = torch.sign(votes) * (1.0 if agree > 0 else -1.0)
    return units * torch.where(signs == 0, torch.ones_like(signs), signs)[:, None]


def odd(activation: Activation) -> bool:
    x = torch.linspace(0.1, 3, 30, dtype=torch.float64)
    return bool(torch.allclose(activation.apply(-x), -activation.apply(x)))


def homogeneous(activation: Activation) -> bool:
    """Piecewise linear with its kink at zero."""
    x = torch.linspace(-3, 3, 30, dtype=torch.float64)
    return bool(torch.allclose(activation.apply(2 * x), 2 * activation.apply(x)))


def _norms(activation: Activation, seen: Observation, units: Tensor, products: Tensor) -> Tensor:
    """(b,) rho with rho · dl/df(rho u, y) = product, for a logistic loss or cross-entropy; by iteration."""
    logits = activation.apply(units @ seen.weights.double().T) @ seen.outer.T  # (b, c) at norm 1
    norms = torch.ones(len(units), dtype=units.dtype)
    label = products.argmin(1)
    for _ in range(_ITERATIONS):
        scaled = norms[:, None] * logits
        if scaled.shape[1] == 1:
            positive = torch.sigmoid(scaled[:, 0])
            size = torch.where(products[:, 0] < 0, 1 - positive, positive)
            norms = products[:, 0].abs() / size.clamp_min(1e-12)
        else:
            share = torch.softmax(scaled, 1).gather(1, label[:, None])[:, 0]
            norms = products.gather(1, label[:, None])[:, 0].abs() / (1 - share).clamp_min(1e-12)
    return norms


def span_of_slopes(slopes: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """(d, b) orthonormal basis of the rows of dL/dW (m, d), and its leading singular values.

    The number of columns is the batch size: nobody has to give it. Randomised, in fp64. Pixels that are zero
    throughout are left out first: pruning would otherwise make them the end of the spectrum.
    """
    rounding = half_precision(slopes) or torch.finfo(slopes.dtype).eps
    live = slopes.abs().amax(0) > 0
    matrix = slopes[:, live].double()
    most = min(_MOST, *matrix.shape)
    if not most:
        raise NotApplicable("dL/dW has no gap between zeros: there is no gradient", ever=False)
    columns = min(32, most)
    inner, values = _leading(matrix, columns, key)
    while columns < most and float(values[-1]) > 2 * rounding * float(values[0]):
        columns = min(2 * columns, most)  # the end of the spectrum is not in sight
        inner, values = _leading(matrix, columns, key)
    rank = _rank(values, rounding)
    if not rank:
        raise NotApplicable(
            "the singular values of dL/dW have no gap: noise or pruning hides the span", ever=True
        )
    basis = matrix.new_zeros(slopes.shape[1], rank)
    basis[live] = inner[:, :rank]
    return basis, values


def _leading(matrix: Tensor, columns: int, key: Key) -> tuple[Tensor, Tensor]:
    sketch = torch.randn(len(matrix), columns, dtype=matrix.dtype, generator=key.generator())
    basis = torch.linalg.qr(matrix.T @ sketch)[0]
    for _ in range(2):
        basis = torch.linalg.qr(matrix.T @ (matrix @ basis))[0]
    _, values, rows = torch.linalg.svd(matrix @ basis, full_matrices=False)
    return basis @ rows.T, values


def _rank(values: Tensor, rounding: float) -> int:
    """Where the values drop for the last time; what lies below the rounding of the release counts as that.

    Images lie close to each other, so the first drop can be the largest. If nothing is as small as rounding,
    the release is noisy or pruned, and drops in the second half are those of nearly dead pixels.
    """
    if len(values) < 2 or not float(values[0]) > 0:
        return 0
    floor = rounding * float(values[0])
    above = values.clamp_min(floor)
    drops = above[:-1] / above[1:] >= _GAP
    if float(values[-1]) > 2 * floor:
        drops = drops[: len(values) // 2]
    places = drops.nonzero()[:, 0]
    return int(places[-1]) + 1 if len(places) else 0


@dataclass(frozen=True)
class TwoLast:
    """Where the last two layers are, and what lies between them."""

    architecture: TwoLayer | MLP
    activation: Activation
    first: str
    second: str
    biased: bool
    inputs: int  # width of what enters them: the record itself for one hidden layer

    @property
    def shape(self) -> tuple[int, ...]:
        whole = math.prod(self.architecture.input_shape) == self.inputs and self.first == "fc1"
        return tuple(self.architecture.input_shape) if whole else (self.inputs,)

    def last(self, gradient: Tensor, parameters: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """(m, d) hidden weights and (c, m) dL/da of one release, whatever the outer weights are."""
        outputs = self._split(gradient, index)[f"{self.second}.weight"].double()
        return self._with_bias(self.architecture.layout.split(parameters)), outputs

    def _split(self, gradient: Tensor, index: int) -> dict[str, Tensor]:
        if not bool(torch.isfinite(gradient).all()):
            raise ExhumeError(f"release {index}: the gradient holds NaN or infinite values")
        return self.architecture.layout.split(gradient)

    def _with_bias(self, named: Mapping[str, Tensor]) -> Tensor:
        """(m, d) of the first of the two layers; the last column is its bias, where there is one."""
        weights = named[f"{self.first}.weight"]
        if not self.biased:
            return weights
        return torch.cat([weights, named[f"{self.first}.bias"][:, None]], 1)

    def observe(self, gradient: Tensor, parameters: Tensor, index: int) -> Observation:
        """One release (p,) and the parameters (p,) it was taken at, in fp64."""
        at, got = self.architecture.layout.split(parameters), self._split(gradient, index)
        weights, slopes = self._with_bias(at), self._with_bias(got)
        outer = at[f"{self.second}.weight"].double()
        alpha, pattern = _split_outer(outer)
        values = got[f"{self.second}.weight"].double()
        return Observation(weights, values, alpha, slopes, pattern, outer)


@dataclass(frozen=True, eq=False)
class Observation:
    weights: Tensor  # (m, d) as queried; the last column is the bias, where there is one
    outputs: Tensor  # (c, m) dL/da
    alpha: Tensor  # (c,)
    raw_slopes: Tensor  # (m, d) dL/dW
    pattern: Tensor  # (m,) a_cj = alpha_c pattern_j
    outer: Tensor  # (c, m) a

    @property
    def values(self) -> Tensor:
        """(m,) F(w_j)."""
        return self.alpha @ self.outputs

    def slopes_along(self, basis: Tensor) -> Tensor:
        """(m, q) the gradient of F at w_j, inside a span."""
        return (self.raw_slopes.double() @ basis) / self.pattern[:, None]


def two_last(architecture: Architecture | None) -> TwoLast:
    """Raises `NotApplicable` for networks that do not end in two fully connected layers."""
    if not isinstance(architecture, TwoLayer | MLP):
        raise NotApplicable(
            f"architecture: the tensor attack reads TwoLayer and MLP networks, not {architecture}",
            ever=True,
        )
    names = [name.removesuffix(".weight") for name in architecture.layout.names if "weight" in name]
    if len(names) < 2:
        raise NotApplicable(f"{architecture}: there is no hidden layer to look through", ever=False)
    shapes = dict(zip(architecture.layout.names, architecture.layout.shapes, strict=True))
    first, second = names[-2:]
    return TwoLast(
        architecture,
        architecture.sigma
        if isinstance(architecture, TwoLayer)
        else activation(architecture.activation),
        first,
        second,
        f"{first}.bias" in shapes,
        shapes[f"{first}.weight"][1],
    )


def query_parameters(architecture: Architecture, spread: float, key: Key) -> Tensor:
    """(p,) the architecture's own start, with w_j ~ N(0, spread^2) and a_cj = ±1/m in the last two layers.

    The signs alternate over the outputs: with equal ones the slopes of a softmax would cancel.
    """
    view = two_last(architecture)
    layout = architecture.layout
    if isinstance(architecture, TwoLayer):  # there is nothing but the last two layers
        named = dict(layout.split(torch.empty(layout.size)))
    else:
        named = {n: t.clone() for n, t in layout.split(architecture.initial(key)).items()}
    generator = key.fold("query").generator()
    for name in (f"{view.first}.weight", f"{view.first}.bias"):
        if name in named:
            named[name] = spread * torch.randn(named[name].shape, generator=generator)
    outer = named[f"{view.second}.weight"]
    signs = torch.ones(len(outer)).where(torch.arange(len(outer)) % 2 == 0, -torch.ones(len(outer)))
    named[f"{view.second}.weight"] = (signs[:, None] / outer.shape[1]).expand_as(outer)
    return layout.join(named)


def _split_outer(outer: Tensor) -> tuple[Tensor, Tensor]:
    """a_cj = alpha_c pattern_j, with alpha of unit largest entry."""
    left, size, right = torch.linalg.svd(outer, full_matrices=False)
    if len(size) > 1 and float(size[1]) > _RANK_ONE * float(size[0]):
        raise NotApplicable(
            "outer weights: the outputs weigh the neurons differently, so their slopes do not add up "
            "to one function; query with multiples of one pattern",
            ever=True,
        )
    largest = left[:, 0].abs().max()
    alpha = left[:, 0] / largest
    pattern = right[0] * size[0] * largest
    if float(pattern.abs().min()) == 0:
        raise NotApplicable("outer weights: a neuron with weight 0 has no slope", ever=True)
    flip = -1.0 if float(alpha[0]) < 0 else 1.0
    return alpha * flip, pattern * flip


def features_below(architecture: MLP, parameters: Tensor) -> Callable[[Tensor], Tensor]:
    """The layers below the last two: from records (n, *shape) to what enters these, (n, k)."""
    below = MLP(
        architecture.input_shape,
        architecture.hidden[:-2],
        architecture.hidden[-2],
        architecture.activation,
    )
    named = architecture.layout.split(parameters)
    known = {name: named[name] for name in below.layout.names}
    module, sigma = below.build(), activation(architecture.activation)

    def features(records: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, known, (records,))
        return sigma.apply(outputs)

    return features


def decode(architecture: MLP, parameters: Tensor, features: Tensor, key: Key) -> Tensor:
    """(n, k) features to (n, *shape) records, from noise in [0, 1]; fp64."""
    parameters, features = parameters.double(), features.double()
    shape = architecture.input_shape
    generator = key.generator()
    start = torch.rand(len(features), *shape, generator=generator, dtype=torch.float64).flatten(1)
    below = features_below(architecture, parameters)
    records = []
    for begin, wanted in zip(start, features, strict=True):

        def gap(flat: Tensor, wanted: Tensor = wanted) -> Tensor:
            return below(flat.reshape(1, *shape))[0] - wanted

        records.append(fit_damped(gap, jacrev(gap), begin, steps=_STEPS, enough=1e-12)[0])
    return torch.stack(records).reshape(-1, *shape)
