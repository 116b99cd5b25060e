"""Training records one by one, from the row span of the second layer.

Weight decay removes what a layer was at the start. What is left of the second layer is a sum over the
training records, W2 = sum_i s_i h(x_i)ᵀ with h(x) = act(W1 x + b), whatever the activation and the biases
behind it, so the hidden activations of every training record lie in its row span, n directions of k:

    f(x) = sum_j w_j (v_jᵀ h(x))² / ||h(x) - FᵀF h(x)||²          v_j, w_j: directions and noise, `reading.py`

Where h is nearly linear (GELU), only the far tail of the directions tells training records from others.

About k - n equations for the r = n - 1 coordinates of x in the row span of the first layer; no multipliers,
no labels, no other candidates. Many random starts go down log f together, at a tenth of the cost of eq. (6).
Records attract unequally, so there are rounds: F (nothing in the first) spans the activations of what is
found, which takes those records out of reach and leaves the others.

`Strongest` is the attack to use on weights. Whether hidden activations brought records back is seen without
the truth: starts that have nothing to do with each other end at the same records, and far nearer to the span
than random inputs are. Where too few do, or the second layer keeps its start, the first layer alone is a sum
over records (`FirstLayer`); in doubt both are run and pooled. Meeting alone is not enough: with two classes
starts meet at places where no record is, at a fifth of the distance of random inputs; records are at a
thousandth. Behind smooth activations there is always doubt: starts slide below the records' own distance and
meet there.

Memory: m·k numbers for m starts; it does not grow with the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from exhume.attacks.margin.descent import RestartRun, RowSpan, SearchDescent, fall, stepper
from exhume.attacks.margin.reading import (
    Reader,
    RowSpace,
    orthonormal,
    row_space,
    scale_of,
    spread_of,
    without,
)
from exhume.attacks.margin.restarts import Restarts, by_own_confidence, distinct, joined, said
from exhume.attacks.margin.stationarity import FirstLayer
from exhume.core.contract import (
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Store,
    Weights,
    silent,
)
from exhume.models.heads import Head
from exhume.models.matrices import Matrices

_OFTEN = 3  # starts that end at the same image make it certain
_ENOUGH = 0.5  # of the records must be met so often, or the other attack is run too
_APART = (
    0.05  # of a random input's distance from the span: a place that is met is a record below it
)
_RANDOM = 200  # inputs that show how far from the span something is that was not trained on
_TINY = 1e-12  # added to Adam's root mean squares


@dataclass(frozen=True)
class HiddenSpan:
    """Reconstruct training records whose hidden activations span the second layer.

    Sees: `Weights`, r networks, each trained on its own unknown records with weight decay.
    Assumes: the architecture, fully connected with two hidden layers or more, any activation, any biases;
    optionally the mean that the released preprocessing subtracts.
    Guarantees: nothing about the truth is used. Every round is a piece of work of its own: a killed run
    goes on where it was and ends with the same bits. A second layer that keeps its start is refused.
    Reference: ours; Buzaglo23 for the victims and the first layer's share in the idea.
    """

    head: Head = "multiclass"
    restarts: int = 6  # rounds
    starts: float = 2.5  # of a round, per training record
    widen: float = 1.5  # directions per training record that the second layer must lie in
    contrast: float = 0.22  # standard deviation of a start's pixels; vectors: `scale_of`
    largest: float = 0.29  # and at most; vectors: in proportion
    same: float = 0.9  # cosine above which two candidates are one image
    trust: float = 3.0  # found: f below so many times that of images that several starts end at
    descent: SearchDescent = SearchDescent(steps=300, rate=0.2)

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> Restarts:
        reader = Reader.of(knowledge, self.head)
        if len(reader.mlp.hidden) < 2:
            raise NotApplicable(
                "fc2: the span of hidden activations needs a second hidden layer", ever=False
            )
        rows_of = lru_cache(maxsize=1)(partial(second_layer, widen=self.widen))
        once = partial(self._once, reader, rows_of)
        return Restarts(self, reader, once, key, store, progress, by_own_confidence)

    def _once(  # noqa: PLR0917
        self,
        reader: Reader,
        rows_of: Callable[[RowSpan], RowSpace],
        parameters: Tensor,
        key: Key,
        earlier: list[RestartRun],
        progress: Callable[[int], None],
    ) -> RestartRun:
        span = reader.span(parameters, None)
        rows = rows_of(span)
        problem = _Problem(span.network, rows, self._found(earlier, span))
        scale = scale_of(span, reader.mlp.input_shape, self.contrast)
        coordinates, lost = self._descend(problem, span, scale, key, progress)
        distance, _ = _Problem(span.network, rows).at(coordinates)
        labels = said(span.network.forward(coordinates)[1])
        inputs, records = span.inputs(coordinates), float(len(span.basis) + 1)
        return RestartRun(inputs, labels, -distance, float(distance.median()), lost, records)

    def random_distance(self, reader: Reader, parameters: Tensor, key: Key) -> float:
        """The median f of random inputs in the span of the first layer, which are no records."""
        span = reader.span(parameters, None)
        spread = spread_of(span, scale_of(span, reader.mlp.input_shape, self.contrast))
        generator = key.fold("random inputs").generator()
        noise = torch.randn(_RANDOM, len(spread), generator=generator, dtype=torch.float64)
        problem = _Problem(span.network, second_layer(span, self.widen))
        return float(problem.at(noise.to(spread) * spread)[0].median())

    def _descend(
        self,
        problem: _Problem,
        span: RowSpan,
        scale: float,
        key: Key,
        progress: Callable[[int], None],
    ) -> tuple[Tensor, float]:
        """(m, r) where the starts end, and the step at which they stopped being finite or -1."""
        spread = spread_of(span, scale)
        longest = scale * self.largest / self.contrast
        shape = (round(self.starts * (len(spread) + 1)), len(spread))
        scaled = torch.randn(shape, generator=key.generator(), dtype=torch.float64).to(spread)
        step = stepper(self.descent.method, [scaled], [self.descent.rate], _TINY)
        kept = scaled.clone()
        for index in range(self.descent.steps):
            value, gradient = problem.at(scaled * spread)
            if not bool(torch.isfinite(value).all()):
                return kept * spread, float(index)
            kept = scaled.clone()
            step([gradient * spread / value[:, None]], fall(self.descent, index))  # of log f
            norms = (scaled * spread).norm(dim=1, keepdim=True)
            scaled.mul_((longest / norms).clamp(max=1))
            progress(index + 1)
        return scaled * spread, -1.0

    def _found(self, earlier: list[RestartRun], span: RowSpan) -> Tensor | None:
        """F: an orthonormal basis (f, k) of the activations of what the earlier rounds found."""
        if not earlier:
            return None
        first = earlier[0]
        heads, sizes = distinct(first.inputs, first.explained, self.same)
        certain = sizes >= _OFTEN
        if not bool(certain.any()):
            return None
        limit = self.trust * float(first.explained[heads[certain]].median())  # negative, as -f is
        met = first.inputs[heads[certain]]
        parts = [(met, torch.zeros_like(met[:, 0]))]  # these first
        parts += [
            (run.inputs[m], run.explained[m]) for run in earlier for m in [run.explained >= limit]
        ]
        inputs, sure = (torch.cat(each) for each in zip(*parts, strict=True))
        once, network = inputs[distinct(inputs, sure, self.same)[0]], span.network
        return orthonormal(network.act.apply(network.forward(once @ span.basis.T)[0][0]))


def second_layer(span: RowSpan, widen: float) -> RowSpace:
    """Read the second layer; refuses one that keeps its start, or has too few neurons."""
    matrix = span.network.later[0]
    count = round(widen * (len(span.basis) + 1))
    if matrix.shape[1] - count < len(span.basis):
        raise NotApplicable(
            f"fc2.weight: {count} directions of {matrix.shape[1]} leave fewer equations than the "
            f"{len(span.basis)} unknowns of a record: too few neurons",
            ever=False,
        )
    return row_space(matrix, count, "fc2.weight")


@dataclass(frozen=True, eq=False)
class _Problem:
    network: Matrices
    rows: RowSpace
    found: Tensor | None = None  # F (f, k), orthonormal

    def at(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """f (m,) at (m, r), and df/dC (m, r)."""
        act = self.network.act
        entering = coordinates @ self.network.first.T + self.network.bias
        hidden = act.apply(entering)
        outside = self.rows.outside(hidden)
        new = hidden if self.found is None else without(hidden, self.found)
        size = new.square().sum(1, keepdim=True).clamp_min(1e-30)
        share = outside.square().sum(1, keepdim=True) / size
        by_hidden = (self.rows.outside(outside) - share * new).mul_(2 / size)
        return share[:, 0], by_hidden.mul_(act.slope(entering, hidden)) @ self.network.first


@dataclass(frozen=True)
class Strongest:
    """Reconstruct training records with the attack that the released weights allow.

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: the architecture; optionally the mean that the released preprocessing subtracts.
    Guarantees: nothing about the truth is used, for the choice of the attack neither.
    Reference: ours; Buzaglo23 for the setting.
    """

    first: FirstLayer = FirstLayer()
    hidden: HiddenSpan = HiddenSpan()

    def of_head(self, head: Head) -> Strongest:
        return Strongest(replace(self.first, head=head), replace(self.hidden, head=head))

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedStrongest:
        first = self.first.prepare(knowledge, key=key, store=store, progress=progress)
        try:
            hidden = self.hidden.prepare(knowledge, key=key, store=store, progress=progress)
        except NotApplicable:  # one hidden layer
            return PreparedStrongest(first, None)
        return PreparedStrongest(first, hidden)


@dataclass(frozen=True, eq=False)
class PreparedStrongest:
    first: Restarts
    hidden: Restarts | None  # needs two hidden layers

    def run(self, releases: Release) -> Reconstruction:
        if not isinstance(releases, Weights):
            return self.first.run(releases)
        rows = [Weights(row[None], releases.layout) for row in releases.parameters]
        results = [self._one(row) for row in rows]
        refused = [each for each in results if each.status.outcome is Outcome.NOT_APPLICABLE]
        return refused[0] if refused else joined(results)

    def choice(self, release: Weights) -> Restarts:
        """Which attack one release gets first: its own choice, so that releases do not touch each other."""
        if self.hidden is None:
            return self.first
        config, reader = self.hidden.config, self.hidden.reader
        assert isinstance(config, HiddenSpan)
        assert isinstance(reader, Reader)
        try:
            second_layer(reader.span(release.parameters[0], None), config.widen)
        except NotApplicable:
            return self.first
        return self.hidden

    def _one(self, release: Weights) -> Reconstruction:
        chosen = self.choice(release)
        reconstruction = chosen.run(release)
        if chosen is self.first:
            return reconstruction
        (flat,), reader, config = release.parameters, chosen.reader, chosen.config
        assert isinstance(config, HiddenSpan)
        assert isinstance(reader, Reader)
        if reader.mlp.matrices(flat).act.curve is None:  # a kink
            apart = config.random_distance(reader, flat, chosen.key)
            certain = met(reconstruction, reader.centre, _APART * apart)
            if certain >= _ENOUGH * reconstruction.observed["records"]:
                return reconstruction
        return _pooled(reconstruction, self.first.run(release))


def met(result: Reconstruction, centre: Tensor, limit: float = math.inf) -> int:
    """Places at which several starts of one release ended, not further from the span than `limit`."""
    if result.status.outcome is Outcome.NOT_APPLICABLE or not len(result.candidates):
        return 0
    inputs = (result.candidates[0] - centre.to(result.candidates)).flatten(1)
    kept, sizes = distinct(inputs, result.confidence[0], HiddenSpan.same)
    near = -result.confidence[0][kept] <= limit
    return int(((sizes >= _OFTEN) & near).sum())


def _pooled(one: Reconstruction, other: Reconstruction) -> Reconstruction:
    """The candidates of two attacks on one release, taken in turn: their confidences do not compare."""
    candidates = torch.cat([one.candidates, other.candidates], 1)
    ranks = [torch.arange(part.candidates.shape[1], dtype=torch.float64) for part in (one, other)]
    rank = torch.cat([ranks[0], ranks[1] + 0.5]).to(candidates.device)
    order = rank.argsort(stable=True)
    labels = None
    if one.labels is not None and other.labels is not None:
        labels = torch.cat([one.labels, other.labels], 1)[:, order]
    return replace(
        one,
        candidates=candidates[:, order],
        confidence=-rank[order].to(one.confidence)[None],
        cost=replace(one.cost, seconds=one.cost.seconds + other.cost.seconds),
        labels=labels,
        observed={**one.observed, "candidates": float(candidates.shape[1])},
    )
