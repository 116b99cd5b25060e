"""Training images from a trained network's stationarity: Buzaglo23's attack as published, and ours.

`Equation6` minimises eq. (6): all layers, momentum, lambda = a² + lambda_min. The search lives in the whole
row space of the first layer, min(k, d) directions, which eq. (6) alone never leaves: a candidate's gradient
is a combination of the rows. The box on pixels does where |x| exceeds 1, and of its pull only what lies in
the row space is followed; with k >= d nothing is lost. The settings are the first of the authors' published
points. As in their code the sum over candidates is a mean, which decides what the rates mean.

`FirstLayer` differs:
1. Only the first layer is explained: the later ones keep most of their random start, which no data explain.
2. Candidates live in the span of the first layer's rows: r = n - 1 unknowns each instead of d.
3. The competitors of a class are weighted as cross-entropy weights them, not by the maximum. At the true
   records this halves the squared residual.
4. Directions are weighted alike: errors of the multipliers reach the residual through the inputs, so each
   column is divided by the spread that inputs have there, which is about the root of its singular value.
5. Multipliers have a free scale; the contrast of candidates is bounded.
6. Adam; restarts are pooled, and later ones begin with what the earlier ones agree on. Classes need not be
   even: what the network says of random inputs follows their shares (`labels`).
7. The residual falls below its value at the truth. What it lacks is a preference for images, total variation
   (`smooth`; not where the layer keeps its start), and, with few neurons an image, gates smooth enough to
   change sides (`alpha`).
8. Other activations have their own derivative where ReLU has its gate; kinks are smoothed, nothing else is.
   Their second layers forget their records (those of a class fall on one direction), the first does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from exhume.attacks.margin.descent import (
    Prior,
    RestartRun,
    RowSpan,
    SearchDescent,
    Start,
    StationarityResidual,
    descend,
)
from exhume.attacks.margin.reading import Reader, check_homogeneous, labels_for, scale_of, spread_of
from exhume.attacks.margin.restarts import Restarts, agreed, pooled, said
from exhume.core.contract import ExhumeError, Key, Knowledge, Progress, Store, silent
from exhume.models.heads import Head

_START = 0.05  # share of the first layer's square outside the records' directions: its start


@dataclass(frozen=True)
class Equation6:
    """Reconstruct training records by minimising eq. (6).

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: the architecture and about how many records there were; optionally their labels and the mean
    that the released preprocessing subtracts.
    Guarantees: nothing about the truth is used. Restarts are kept one by one.
    Reference: Buzaglo23, eq. (6), and the settings of the authors' public code.
    """

    candidates: int = 200  # m; authors: twice the number of records
    head: Head = "multiclass"
    scale: float = 6.2e-5  # of the initial candidates; search: 1e-6 to .1
    lambda_min: float = 0.203  # search: .01 to .5
    alpha: float = 39.5  # search: 10 to 500
    descent: SearchDescent = SearchDescent(
        "momentum", steps=50_000, rate=1.36e-3, multiplier_rate=0.479, falling=False
    )
    prior: Prior = Prior(box=1.0)
    restarts: int = 1

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> Restarts:
        reader = Reader.of(knowledge, self.head)
        check_homogeneous(reader.mlp)
        return Restarts(self, reader, partial(self._once, reader), key, store, progress, pooled)

    def _once(
        self,
        reader: Reader,
        parameters: Tensor,
        key: Key,
        _: list[RestartRun],
        progress: Callable[[int], None],
    ) -> RestartRun:
        span = reader.span(parameters, 0)
        labels = labels_for(self.candidates, reader, parameters)
        weights = (1.0,) * (1 + len(span.network.later))
        problem = StationarityResidual(span, labels, self.head, "max", self.alpha, weights)
        shape, like = (self.candidates, len(span.values)), span.values
        noise = torch.randn(shape, generator=key.fold("x").generator(), dtype=torch.float64)
        raw = torch.rand(self.candidates, generator=key.fold("a").generator(), dtype=torch.float64)
        start = Start(
            self.scale * noise.to(like),
            raw.to(like),
            torch.ones_like(like),
            "free" if self.head == "regression" else "squared",
            self.lambda_min,
            share=1 / self.candidates,
            absolute=True,
        )
        image, descent = reader.mlp.input_shape, self.descent
        end = descend(problem, start, descent, prior=self.prior, shape=image, progress=progress)
        return end.run(span, labels, records=self.candidates / 2)


@dataclass(frozen=True)
class FirstLayer:
    """Reconstruct training records from the first layer of a network.

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: the architecture, fully connected, any activation that is not linear, any biases; optionally the
    labels of the training records and the mean that the released preprocessing subtracts.
    Guarantees: nothing about the truth is used. Every restart is a piece of work of its own: a killed
    run goes on where it was and ends with the same bits; memory does not grow with restarts.
    Reference: Buzaglo23, eq. (6); the changes are ours.
    """

    head: Head = "multiclass"
    candidates: float = 2.0  # per training record, whose number is the rank of the span + 1
    later: float = 1.5  # the same for restarts that do not begin at random
    restarts: int = 6
    fresh: int = 2  # restarts that begin at random; later ones with what the earlier ones agree on
    alpha: float = 50.0  # steepness of the smoothed derivative; the authors search 10 to 500
    contrast: float = (
        0.22  # standard deviation of a candidate's pixels at the start; vectors: `scale_of`
    )
    largest: float = 0.25  # and at most; vectors: in proportion
    descent: SearchDescent = SearchDescent()
    labels: Literal["even", "own"] = "even"  # own: by the network, for any mix of classes
    smooth: float = (
        3e-4  # weight of an image's total variation per candidate, at a contrast of 0.22
    )

    def __post_init__(self) -> None:
        if self.smooth < 0:
            raise ExhumeError(f"smooth: must be at least 0, got {self.smooth:g}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> Restarts:
        reader = Reader.of(knowledge, self.head)
        return Restarts(self, reader, partial(self._once, reader), key, store, progress, pooled)

    def _once(
        self,
        reader: Reader,
        parameters: Tensor,
        key: Key,
        earlier: list[RestartRun],
        progress: Callable[[int], None],
    ) -> RestartRun:
        span, shape = reader.span(parameters, None), reader.mlp.input_shape
        records, again = len(span.basis) + 1, len(earlier) >= self.fresh
        count = round((self.later if again else self.candidates) * records)
        scale = scale_of(span, shape, self.contrast)
        spread = spread_of(span, scale)
        noise = torch.randn(count, len(spread), generator=key.generator(), dtype=torch.float64)
        coordinates = noise.to(spread) * spread
        raw, largest = torch.zeros_like(coordinates[:, 0]), scale * self.largest / self.contrast
        start = Start(coordinates, raw, spread, largest=largest)
        if self.labels == "own" and reader.labels is None:
            labels = said(span.network.forward(start.coordinates)[1])
        else:
            labels = labels_for(count, reader, parameters)
        if again:
            labels, start = _begin_with(agreed(earlier), span, labels, start)
        # weights of the first layer's columns; a bias that is not there (all zero) asks for nothing
        columns = torch.cat([1 / spread, span.network.bias.any()[None].to(spread)])
        problem = StationarityResidual(
            span, labels, self.head, "softmax", self.alpha, columns=columns
        )
        start = _with_multipliers(problem, start, signed=self.head == "regression")
        variation = self.smooth * (FirstLayer.contrast / self.contrast) / count
        prior = Prior(tv=variation if _is_sum(span) else 0.0)
        end = descend(problem, start, self.descent, prior=prior, shape=shape, progress=progress)
        return end.run(span, labels, records)


def _is_sum(span: RowSpan) -> bool:
    """Whether records explain the first layer.

    Where its start is still there the residual says little, and a preference for smooth images decides.
    """
    inside, (neurons, rank) = span.values.square().sum(), span.network.first.shape
    whole = rank == min(neurons, span.basis.shape[1])
    return not whole and span.outside <= _START * (float(inside) + span.outside)


def _with_multipliers(problem: StationarityResidual, start: Start, *, signed: bool) -> Start:
    """The start with one multiplier for all: the scale that explains most.

    loss(s) = loss(0) - 2 s a + s² q, so two evaluations give the best s. Where the random candidates point
    away from the weights (a < 0), a tenth of the weights' norm is a start that can still grow.
    """
    zero = torch.zeros_like(start.raw)
    none, one = problem.at(start.coordinates, zero), problem.at(start.coordinates, zero + 1)
    a = -0.5 * float(none.multipliers.sum())
    q = max(one.loss - none.loss + 2 * a, 1e-12)
    if signed:
        return replace(start, raw=zero + a / q, multiplier="free")
    return replace(start, raw=zero + math.log(max(a / q, 0.1 / math.sqrt(q))), multiplier="log")


def _begin_with(
    met: tuple[Tensor, Tensor], span: RowSpan, labels: Tensor, start: Start
) -> tuple[Tensor, Start]:
    """The start with the agreed inputs (k, d) in place of random ones of the same labels (k,)."""
    labels, coordinates = labels.clone(), start.coordinates.clone()
    free = torch.ones_like(labels, dtype=torch.bool)
    for inputs, label in zip(met[0] @ span.basis.T, met[1], strict=True):
        places = (free & (labels == label)).nonzero()[:, 0]
        if len(places):
            coordinates[places[0]] = inputs
            free[places[0]] = False
    return labels, replace(start, coordinates=coordinates)
