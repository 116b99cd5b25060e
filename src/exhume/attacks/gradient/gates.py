"""Every record of a batch behind fully connected layers with gates, at honest weights, batch size not given.

The last two layers are searched for the gates of each record: that gives what enters them and
what comes back to them, exactly. Below, nothing is searched any more: the gates of a layer are the signs of
what it gave, so that its deltas are known and its inputs are a linear system.

Which neurons each record opens: a regression with two answers for every neuron.

    dL/dW = sum_i delta_i x_i^T,     delta_ij = g_ij w_j · r_i,     g_ij = 1 (open) or the leak (shut)

w_j is the known column of the next layer, r_i what comes back to its output. dL/dW = L V with L (m, b), so
delta_i = L q_i for some q_i, and every neuron obeys one of two linear equations in (q, r):

    L_j · q = w_j · r   (open)      or      L_j · q = leak w_j · r   (shut)

b + k unknowns, m equations, and nobody says which. Reweighted least squares from many random starts: each
neuron leans to the equation that it nearly fulfils, more and more firmly. A wrong answer explains few more
neurons than it has unknowns, a right one all of them: the truth is not needed to tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from exhume.attacks.gradient.chains import Chain, Layer, chain_of
from exhume.attacks.gradient.span import span_of_slopes
from exhume.attacks.releases import BatchAnswer, EachGradient, architecture_of, goes_on
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
from exhume.train.least_squares import least_norm

ROUNDS = 100  # of 256 starts, at most
_NOTHING = 1e-6  # relative: singular values of rounding
_BELOW = 12  # rounds until neurons with a wrong gate have lost their weight
EXPLAINED = 0.95  # share of the neurons that an answer must explain
_PROMISING = 0.6  # share after the rough search that is worth an exact one
_STARTS = 256  # at once
_STEPS, _FALLS = 90, 0.93  # of the search; how fast a neuron makes up its mind
_FIRMER = 4  # exact rounds
_ROUGH, _EXACT = 0.05, 2e-3  # of the size of delta: an equation that is fulfilled
_SAME = 0.999  # cosine of two answers that are one
_MARGIN = 1.25  # equations for each unknown, at least
_PATIENCE = 20  # rounds that find nothing new
_WORK = 6e12  # operations of a search: some two minutes on a core
_FEWEST = 4  # rounds, whatever they cost
_FLOOR = 0.1  # of the size of delta: how firmly a neuron decides where deltas are averages
_NEARLY = 0.3  # of the size of delta: an equation of averages that is fulfilled
_APART = 0.9  # cosine of two answers of averages that are one
_FITS = 2e-3  # relative: what the slopes leave over at the right size
_GRID, _ROUNDS = 200, 6


@dataclass(frozen=True)
class GateAttack:
    """Reconstruct all records behind a gradient of fully connected layers with ReLU or leaky gates.

    Sees: `Gradient`, all fully connected layers.
    Assumes: the architecture; two such layers or more at its end with a gate between them; biases, or a
    cross-entropy of three outputs; linearly independent features, fewer than neurons; a gradient of one step.
    Guarantees: the batch size is read off the spectrum; `explained`, the share of neurons whose gates fit an
    answer, certifies it without the truth.
    Reference: the low rank and the sparsity of dL/dW are SPEAR's (Dimitrov et al. 2024); the regression on
    two equations a neuron, the draws inside the span that is left and the way down are ours.
    """

    rounds: int = ROUNDS

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        architecture = architecture_of(knowledge, "the gates' attack")
        shape = tuple(architecture.input_shape)

        def invert(gradient: Tensor, parameters: Tensor, index: int) -> BatchAnswer:
            seen = Layers(architecture, gradient, parameters, progress=progress)
            release_key = key.fold(index)
            chain = chain_for(seen, release_key)
            if not chain.whole:
                raise NotApplicable(
                    f"{architecture}: what enters {chain.layers[0].name}, the first layer that can be read, "
                    "is not the record itself",
                    ever=False,
                )
            features = features_behind(seen, chain, self.rounds, release_key, records_behind)
            return BatchAnswer(
                features.inputs.to(gradient.dtype).reshape(-1, *shape),
                features.explained,
                {"batch_size": float(features.rank), "explained": float(features.explained.min())},
                complete=features.complete,
            )

        return EachGradient(shape, invert, "the gates' attack", "opening gates", progress)


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """What enters a layer, record by record."""

    inputs: Tensor  # (n, f)
    deltas: Tensor  # (n, m) what comes back to its output
    explained: Tensor  # (n,) share of the neurons whose gates fit
    rank: int  # records of the batch

    @property
    def complete(self) -> bool:
        return len(self.inputs) == self.rank and bool((self.explained >= EXPLAINED).all())


@dataclass(frozen=True, eq=False)
class Layers:
    """A gradient and the parameters it was taken at, layer by layer, in double precision."""

    architecture: Architecture
    gradient: Tensor  # (p,)
    parameters: Tensor  # (p,)
    records: int | None = None  # of the batch; None: the spectrum says it
    spans: dict[str, Tensor] = field(default_factory=dict, repr=False)  # by layer, each once
    progress: Progress = silent

    def __post_init__(self) -> None:
        if not bool(torch.isfinite(self.gradient).all()):
            raise ExhumeError("release: the gradient holds NaN or infinite values")

    @property
    def frozen(self) -> tuple[str, ...]:
        """Parameters without a gradient."""
        named = self.architecture.layout.split(self.gradient)
        return tuple(name for name, part in named.items() if not bool(part.any()))

    def slopes(self, layer: Layer) -> Tensor:
        """(m, f + 1) dL/dW with dL/db behind it."""
        return self._slopes(layer).double()

    def span(self, layer: Layer, key: Key) -> Tensor:
        """(f + 1, b) a basis of what enters the layer; the release's own precision says where it ends."""
        if layer.name not in self.spans:
            slopes = self._slopes(layer)
            if self.records is None:
                basis = span_of_slopes(slopes, key.fold("span"))[0]
            else:
                rows = torch.linalg.svd(slopes.double(), full_matrices=False)[2]
                basis = rows[: self.records].T
            self.spans[layer.name] = basis
        return self.spans[layer.name]

    def weights(self, layer: Layer) -> Tensor:
        """(m, f + 1) of the layer and its norm in one."""
        named = self.architecture.layout.split(self.parameters)
        if not layer.norm:
            return _with_bias(layer, named).double()
        scale, shift = self._norm(layer)
        bias = named.get(f"{layer.name}.bias")
        shift = shift if bias is None else shift + scale * bias.double()
        return torch.cat([scale[:, None] * named[f"{layer.name}.weight"], shift[:, None]], 1)

    def _slopes(self, layer: Layer) -> Tensor:
        named = self.architecture.layout.split(self.gradient)
        if not layer.norm:
            return _with_bias(layer, named)
        scale = self._norm(layer)[0].to(self.gradient.dtype)
        back = torch.where(scale == 0, 0.0, 1 / scale)[:, None]  # W of the two in one is scale · W
        rows = back * named[f"{layer.name}.weight"]
        if f"{layer.norm}.bias" in named:
            return torch.cat([rows, named[f"{layer.norm}.bias"][:, None]], 1)
        return torch.cat([rows, back * named[f"{layer.name}.bias"][:, None]], 1)

    def _norm(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """(m,) what a batch norm in eval mode multiplies each neuron by, and adds."""
        norm = self.architecture.build().get_submodule(layer.norm)
        assert isinstance(norm, nn.BatchNorm1d)  # or `chain_of` would not name it
        assert norm.running_mean is not None  # it is in eval mode
        assert norm.running_var is not None
        named = self.architecture.layout.split(self.parameters)
        scale = 1 / (norm.running_var.double() + norm.eps).sqrt()
        if f"{layer.norm}.weight" in named:
            scale = scale * named[f"{layer.norm}.weight"].double()
        shift = -scale * norm.running_mean.double()
        if f"{layer.norm}.bias" in named:
            shift = shift + named[f"{layer.norm}.bias"].double()
        return scale, shift


def _with_bias(layer: Layer, named: Mapping[str, Tensor]) -> Tensor:
    parts = [named[f"{layer.name}.weight"]]
    if layer.biased:
        parts.append(named[f"{layer.name}.bias"][:, None])
    return torch.cat(parts, 1)


def chain_for(seen: Layers, key: Key) -> Chain:
    """The layers to read: for a batch of one the lowest, whatever is behind it; else those with gates."""
    known = (seen.architecture, seen.parameters, seen.frozen)
    lowest = chain_of(*known, lowest_alone=True)
    if lowest is None:
        raise NotApplicable(
            f"{seen.architecture}: no fully connected layer takes one vector a record", ever=False
        )
    first = lowest.layers[0]
    if first.biased and seen.span(first, key).shape[1] == 1:
        return lowest
    gated = chain_of(*known)
    assert gated is not None  # there is a layer
    return gated


def features_behind(
    seen: Layers, chain: Chain, rounds: int, key: Key, search: Search
) -> LayerInputs:
    """What enters the lowest layer of the chain. search: for the gates of the last two."""
    lowest = chain.layers[0]
    if seen.span(lowest, key).shape[1] == 1 and (lowest.biased or not chain.gated):
        if not lowest.biased:
            raise NotApplicable(f"{lowest.name} has no bias, so that the size is open", ever=False)
        slopes = seen.slopes(lowest)  # of one record: dL/dW is x dL/db
        deltas = slopes[:, -1]
        inputs = (deltas @ slopes[:, :-1]) / deltas.square().sum()
        return LayerInputs(inputs[None], deltas[None], torch.ones(1, dtype=torch.float64), 1)
    if not chain.gated:
        raise NotApplicable(
            f"{lowest.name} has no gate and no fully connected layer behind it, so that only a batch of one "
            "can be read off it",
            ever=True,
        )
    *below, first, second = chain.layers
    features = _searched(seen, (first, second), rounds, key, search)
    above = first
    for layer in reversed(below):
        features = _below(seen, layer, above, features)
        above = layer
    return features


def _searched(
    seen: Layers, pair: tuple[Layer, Layer], rounds: int, key: Key, search: Search
) -> LayerInputs:
    """What enters the first of two layers with a gate between them."""
    first, second = pair
    slopes, weights = seen.slopes(first), seen.weights(first)
    basis = seen.span(first, key)
    left, size = torch.linalg.qr(slopes @ basis)  # slopes = left @ rows
    rows = size @ basis.T
    above, above_sizes, _ = torch.linalg.svd(seen.slopes(second), full_matrices=False)
    returning = above[:, above_sizes > _NOTHING * above_sizes[0]]  # (c, k) what can come back to it
    outer = seen.weights(second)[:, : len(weights)].T @ returning
    neurons = Neurons.of(left, outer, weights @ rows.T, first.leak)
    if not neurons.enough:
        raise NotApplicable(
            f"{basis.shape[1]} records are too many for {len(neurons.left)} neurons of {first.name}",
            ever=False,
        )
    answers = search(neurons, key, rounds, seen.progress)
    if not len(answers):
        raise NotApplicable(f"no record's gates were found in {rounds} rounds", ever=True)
    inputs = torch.linalg.pinv(answers.duals.T) @ rows  # x delta^T, up to the size of either
    if first.biased:
        last = inputs[:, -1:]
    else:
        hidden = inputs @ weights.T
        last = 1 / sizes_of(
            hidden, first, second, seen.weights(second), answers.returned @ returning.T
        )
    inputs = inputs / last
    along = left @ answers.duals.T * last.T  # (m, n) delta
    back = outer @ answers.returned.T * last.T
    opened = (along - back).abs() < (along - first.leak * back).abs()
    live = left.norm(dim=1) > 0
    agree = (opened == (weights @ inputs.T > 0))[live].double().mean(0)
    inputs = inputs[:, :-1] if first.biased else inputs
    return LayerInputs(inputs, along.T, agree, basis.shape[1])


def _below(seen: Layers, layer: Layer, above: Layer, given: LayerInputs) -> LayerInputs:
    """One layer down: its gates are the signs of what it gave, so that what comes back to it is known.

    Some gates are so nearly shut that the error of the features hides their side. A neuron with such a gate
    does not fit the others, so that it loses its weight.
    """
    back = given.deltas @ seen.weights(above)[:, : given.inputs.shape[1]]
    slopes = seen.slopes(layer)
    error = 0.0 if layer.leak else 1.5 * float(-given.inputs.min().clamp_max(0))
    deltas = torch.where(given.inputs > error, 1.0, layer.leak) * back
    weight = torch.ones(len(slopes), 1, dtype=slopes.dtype)
    for _ in range(_BELOW):
        inputs = least_norm(weight * deltas.T, weight * slopes)
        misfit = (slopes - deltas.T @ inputs).norm(dim=1, keepdim=True)
        weight = 1 / (misfit + misfit.median() + 1e-30)
        weight = weight / weight.max()
    opened = inputs @ seen.weights(layer).T > 0
    deltas = torch.where(opened, 1.0, layer.leak) * back
    inputs = inputs[:, :-1] if layer.biased else inputs
    return LayerInputs(inputs, deltas, given.explained, given.rank)


@dataclass(frozen=True, eq=False)
class Neurons:
    """The equations: one row a neuron that has a gradient, of unit length in L."""

    left: Tensor  # (m, b) of L
    outer: Tensor  # (m, k) of w, on a basis of what can come back
    before: Tensor  # (m, b) what reaches the gates, on the basis V
    leak: float  # slope of a shut gate

    @staticmethod
    def of(left: Tensor, outer: Tensor, before: Tensor, leak: float) -> Neurons:
        size = left.norm(dim=1)
        live = size > 1e-6 * size.max()
        scale = size[live, None]
        return Neurons(left[live] / scale, outer[live] / scale, before[live], leak)

    @property
    def enough(self) -> bool:
        """There are so many equations that a wrong answer stands out."""
        return len(self.left) >= _MARGIN * (self.left.shape[1] + self.outer.shape[1])

    @property
    def affordable(self) -> int:
        """Rounds that fit into the work of a search."""
        unknowns = self.left.shape[1] + self.outer.shape[1]
        return max(_FEWEST, int(_WORK / (2 * _STEPS * _STARTS * len(self.left) * unknowns**2)))


@dataclass(frozen=True, eq=False)
class GateAnswers:
    duals: Tensor  # (n, b) the q_i, of unit length, up to sign
    returned: Tensor  # (n, k) the r_i on the same scale
    explained: Tensor  # (n,) share of the neurons

    def __len__(self) -> int:
        return len(self.duals)


Search = Callable[[Neurons, Key, int, Progress], GateAnswers]


def records_behind(neurons: Neurons, key: Key, rounds: int, progress: Progress) -> GateAnswers:
    """All b records' answers, or those that came up in so many rounds of starts, or in time."""
    b, k = neurons.left.shape[1], neurons.outer.shape[1]
    answers = GateAnswers(
        neurons.left.new_zeros(0, b), neurons.left.new_zeros(0, k), torch.zeros(0)
    )
    generator = key.fold("gates").generator()
    idle = 0
    most = min(rounds, neurons.affordable)
    for turn in range(most):
        if len(answers) == b or idle == _PATIENCE:
            break
        if not goes_on(progress, "opening gates", turn, most):
            break
        before = len(answers)
        starts = torch.randn(_STARTS, b, generator=generator, dtype=torch.float64)
        # what best suits the gates of drawn records. A missing record is V^T c with c orthogonal to every
        # q that was found: the fewer are missing, the better the draw
        drawn = starts[1::2]
        if len(answers):
            basis = torch.linalg.qr(answers.duals.T)[0]
            drawn = drawn - (drawn @ basis) @ basis.T
        suited = _solutions(neurons, drawn @ neurons.before.T > 0)
        answers = _joined(answers, _exact(neurons, *suited))
        starts = torch.cat([starts[::2], suited[0]])
        answers = _joined(answers, _exact(neurons, *_descended(neurons, starts)))
        idle = 0 if len(answers) > before else idle + 1
    return answers


def likely_records(neurons: Neurons, key: Key, rounds: int, progress: Progress) -> GateAnswers:
    """The b answers that explain most, where no equation holds exactly: deltas are averages over steps."""
    generator, b = key.fold("likely").generator(), neurons.left.shape[1]
    most, answers = min(rounds, neurons.affordable), list[tuple[Tensor, Tensor]]()
    for turn in range(most):
        if answers and not goes_on(progress, "opening gates", turn, most):
            break
        starts = torch.randn(_STARTS, b, generator=generator, dtype=torch.float64)
        answers.append(_descended(neurons, starts, _FLOOR))
    q, r = (torch.cat(parts) for parts in zip(*answers, strict=True))
    share = _explained(neurons, q, r, _NEARLY)
    picked: list[int] = []
    for place in share.argsort(descending=True).tolist():
        if len(picked) == b:
            break
        if not picked or float((q[picked] @ q[place]).abs().max()) <= _APART:
            picked.append(place)
    return GateAnswers(q[picked], r[picked], share[picked])


def _solutions(neurons: Neurons, opened: Tensor) -> tuple[Tensor, Tensor]:
    """(s, b), (s, k): what fulfils all equations best, where the sides (s, m) are given."""
    left, outer, b = neurons.left, neurons.outer, neurons.left.shape[1]
    slope = torch.where(opened, 1.0, neurons.leak)
    count = len(opened)
    rows = torch.cat(
        [left.expand(count, -1, -1), -slope[:, :, None] * outer.expand(count, -1, -1)], 2
    )
    least = torch.linalg.eigh(rows.transpose(1, 2) @ rows)[1][:, :, 0]
    size = least[:, :b].norm(dim=1, keepdim=True).clamp_min(1e-30)
    return least[:, :b] / size, least[:, b:] / size


def _descended(neurons: Neurons, starts: Tensor, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """(s, b) and (s, k) answers in single precision. floor: of the size of delta, where firmness ends."""
    left, outer = neurons.left.float(), neurons.outer.float()
    pairs = ((left, left), (left, outer), (outer, outer))
    squares = [a[:, :, None] * c[:, None, :] for a, c in pairs]  # (m, a, c) of each neuron
    q = torch.nn.functional.normalize(starts.float(), dim=1)
    along = q @ left.T
    level = along.abs().median(dim=1, keepdim=True).values
    opened = (along.abs() > level).float()
    target = ((opened * along) @ outer)[:, :, None]
    r = torch.linalg.solve(_ridged(_sums(opened, squares[2])), target)[:, :, 0]
    for _ in range(_STEPS):
        back = r @ outer.T
        shut = 1 / ((along - neurons.leak * back).square() + level.square())
        opened = 1 / ((along - back).square() + level.square())
        both = shut + opened
        shut, opened = shut.square() / both, opened.square() / both
        inside = _sums(shut + opened, squares[0])
        across = _sums(opened + neurons.leak * shut, squares[1])
        outside = _sums(opened + neurons.leak**2 * shut, squares[2])
        gain = torch.linalg.solve(_ridged(outside), across.transpose(1, 2))
        # one step of inverse iteration towards the least eigenvector
        factor, _ = torch.linalg.cholesky_ex(_ridged(inside - across @ gain))
        moved = torch.cholesky_solve(q[:, :, None], factor)[:, :, 0]
        q = torch.nn.functional.normalize(torch.where(torch.isfinite(moved), moved, q), dim=1)
        r = (gain @ q[:, :, None])[:, :, 0]
        along = q @ left.T
        level = torch.maximum(level * _FALLS, floor * along.square().mean(1, keepdim=True).sqrt())
    return q.double(), r.double()


def _exact(neurons: Neurons, q: Tensor, r: Tensor) -> GateAnswers:
    """Those that explain enough, with each neuron on its nearer side and all equations solved at once."""
    left, outer, leak = neurons.left, neurons.outer, neurons.leak
    promising = _explained(neurons, q, r, _ROUGH) >= _PROMISING
    q, r = q[promising], r[promising]
    for _ in range(_FIRMER):
        if not len(q):
            break
        along, back = q @ left.T, r @ outer.T
        opened = (along - back).abs() < (along - leak * back).abs()
        q, r = _solutions(neurons, opened)
    share = _explained(neurons, q, r, _EXACT)
    certain = share >= EXPLAINED
    return GateAnswers(q[certain], r[certain], share[certain])


def _joined(known: GateAnswers, more: GateAnswers) -> GateAnswers:
    """Different answers, each once, those that explain most first."""
    rows, returned, shares = list(known.duals), list(known.returned), known.explained.tolist()
    for place in more.explained.argsort(descending=True).tolist():
        q = more.duals[place]
        if rows and float((torch.stack(rows) @ q).abs().max()) > _SAME:
            continue
        rows.append(q)
        returned.append(more.returned[place])
        shares.append(float(more.explained[place]))
    if not rows:
        return known
    return GateAnswers(torch.stack(rows), torch.stack(returned), torch.tensor(shares))


def _explained(neurons: Neurons, q: Tensor, r: Tensor, tolerance: float) -> Tensor:
    """(s,) share of the neurons that obey one of their equations."""
    along, back = q @ neurons.left.T, r @ neurons.outer.T
    gap = torch.minimum((along - back).abs(), (along - neurons.leak * back).abs())
    size = along.square().mean(1, keepdim=True).sqrt()
    return (gap < tolerance * size).double().mean(1)


def _sums(weights: Tensor, products: Tensor) -> Tensor:
    """(s, m) weights to (s, a, c)."""
    return (weights @ products.flatten(1)).reshape(len(weights), *products.shape[1:])


def _ridged(matrix: Tensor) -> Tensor:
    size = matrix.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp_min(1e-30)
    return matrix + 1e-6 * size * torch.eye(matrix.shape[1], dtype=matrix.dtype)


def sizes_of(
    hidden: Tensor, first: Layer, second: Layer, weights: Tensor, slopes: Tensor
) -> Tensor:
    """(n, 1) factors, with their signs, of directions whose (n, m) layer outputs are `hidden`.

    dL/dW = sum_i delta_i x_i^T gives x_i only up to a factor: a_i = x_i / alpha and R_i = alpha delta_i.
    Behind the last layer delta_i = (softmax(alpha f_i + b) - e_y) / B, and f_i, of a_i, is known. With three
    outputs or more that is more than one equation for alpha, so that what is left over certifies it.

    weights: (c, m), or (c, m + 1) with a bias, of the second layer. slopes: (n, c) R_i.
    """
    c = slopes.shape[1]
    if c < 3:
        raise NotApplicable(f"{first.name} has no bias, so that the size is open", ever=False)
    inner, shift = weights[:, : hidden.shape[1]], slopes.new_zeros(c)
    if second.biased:
        shift = weights[:, -1]
    best = [_fitted(sign * hidden, first.leak, inner, shift, sign * slopes) for sign in (1.0, -1.0)]
    (plus, left), (minus, other) = best
    if float(torch.minimum(left, other).max()) > _FITS:
        raise NotApplicable(
            f"{first.name} has no bias, and what comes back from {second.name} is not that of a "
            "cross-entropy, so that the size is open",
            ever=False,
        )
    return torch.where(left <= other, plus, -minus)[:, None]


def _fitted(
    hidden: Tensor, leak: float, inner: Tensor, shift: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor]:
    """(n,) the alpha at which softmax(alpha f + b) - e_y points as R does, and how far apart they stay."""
    outputs = torch.where(hidden > 0, hidden, leak * hidden) @ inner.T
    label = torch.zeros_like(slopes).scatter(1, slopes.argmin(1, keepdim=True), 1.0)
    size = slopes.norm(dim=1, keepdim=True)
    scale = 1 / outputs.abs().amax(1, keepdim=True).clamp_min(1e-30)  # alpha f is of order 1 here
    low, high = torch.full_like(scale, -8.0), torch.full_like(scale, 8.0)  # of log(alpha / scale)
    steps = torch.linspace(0, 1, _GRID, dtype=slopes.dtype)
    for _ in range(_ROUNDS):
        tried = low + (high - low) * steps  # (n, grid)
        alpha = scale * tried.exp()
        made = torch.softmax(alpha[:, :, None] * outputs[:, None] + shift, 2) - label[:, None]
        # only the direction is compared: B and the size of R then need not be known
        unit = made / made.norm(dim=2, keepdim=True).clamp_min(1e-30)
        away = (unit - (slopes / size)[:, None]).norm(dim=2)
        left, place = away.min(1, keepdim=True)
        middle, width = tried.gather(1, place), (high - low) / _GRID
        low, high = middle - 2 * width, middle + 2 * width
    return (scale * middle.exp())[:, 0], left[:, 0]
