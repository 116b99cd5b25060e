"""Training images from the first layer of a trained network, inside its own row span.

Against eq. (6) of Buzaglo23:
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
from exhume.attacks.margin.reading import Reader, labels_for, scale_of, spread_of
from exhume.attacks.margin.restarts import Restarts, agreed, pooled, said
from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    Progress,
    Store,
    silent,
)
from exhume.models.heads import Head
from exhume.train.margin import Others

_START = 0.05  # share of the first layer's square outside the records' directions: its start


@dataclass(frozen=True)
class FirstLayer:
    """Reconstruct training records from the first layer of a network.

    Sees: `Weights`, r networks, each trained on its own unknown records.
    Assumes: the architecture, fully connected, any activation that is not linear, any biases; optionally the
    labels of the training records and the mean that the released preprocessing subtracts.
    Guarantees: nothing about the truth is used. Every restart is a piece of work of its own: a killed
    run goes on where it was and ends with the same bits; memory does not grow with restarts.
    Reference: Buzaglo23, eq. (6); the six changes are ours.
    """

    head: Head = "multiclass"
    others: Others = "softmax"
    weights: tuple[float, ...] = (1.0,)  # of the layers' residuals, first to last
    rank: int | None = None  # of the span; None: read off the spectrum, 0: all of it
    candidates: float = 2.0  # per training record, whose number is the rank + 1
    later: float = 1.5  # the same for restarts that do not begin at random
    restarts: int = 6
    fresh: int = 2  # restarts that begin at random; later ones with what the earlier ones agree on
    alpha: float = 50.0  # steepness of the smoothed derivative; the authors search 10 to 500
    contrast: float = (
        0.22  # standard deviation of a candidate's pixels at the start; vectors: `scale_of`
    )
    largest: float = 0.25  # and at most; vectors: in proportion
    descent: SearchDescent = SearchDescent()
    prior: Prior = Prior()
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
        span = reader.span(parameters, self.rank)
        records, again = len(span.basis) + 1, len(earlier) >= self.fresh
        count = round((self.later if again else self.candidates) * records)
        scale = scale_of(span, reader.mlp.input_shape, self.contrast)
        start, columns = self._start(span, scale, count, key)
        if self.labels == "own" and reader.labels is None:
            labels = said(span.network.forward(start.coordinates)[1])
        else:
            labels = labels_for(count, reader, parameters)
        if again:
            labels, start = _begin_with(agreed(earlier), span, labels, start)
        problem = StationarityResidual(
            span, labels, self.head, self.others, self.alpha, self.weights, columns
        )
        start = _with_multipliers(problem, start, signed=self.head == "regression")
        shape = reader.mlp.input_shape
        variation = self.smooth * (FirstLayer.contrast / self.contrast) / count
        prior = replace(self.prior, tv=self.prior.tv + (variation if _is_sum(span) else 0.0))
        found = descend(problem, start, self.descent, prior=prior, shape=shape, progress=progress)
        return found.run(span, labels, records)

    def _start(self, span: RowSpan, scale: float, count: int, key: Key) -> tuple[Start, Tensor]:
        spread = spread_of(span, scale)
        noise = torch.randn(count, len(spread), generator=key.generator(), dtype=torch.float64)
        coordinates = noise.to(spread) * spread
        columns = _columns(spread, span.network.bias)
        raw = torch.zeros_like(coordinates[:, 0])
        return Start(
            coordinates, raw, spread, largest=scale * self.largest / self.contrast
        ), columns


def _is_sum(span: RowSpan) -> bool:
    """Whether records explain the first layer.

    Where its start is still there the residual says little, and a preference for smooth images decides.
    """
    inside, (neurons, rank) = span.values.square().sum(), span.network.first.shape
    whole = rank == min(neurons, span.basis.shape[1])
    return not whole and span.outside <= _START * (float(inside) + span.outside)


def _columns(spread: Tensor, bias: Tensor) -> Tensor:
    """(r+1,) weights of the first layer's columns. A bias that is not there (all zero) asks for nothing."""
    return torch.cat([1 / spread, bias.any()[None].to(spread)])


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
    found: tuple[Tensor, Tensor], span: RowSpan, labels: Tensor, start: Start
) -> tuple[Tensor, Start]:
    """The start with the agreed inputs (k, d) in place of random ones of the same labels (k,)."""
    inputs, known = found
    labels, coordinates = labels.clone(), start.coordinates.clone()
    free = torch.ones_like(labels, dtype=torch.bool)
    for one, label in zip(inputs @ span.basis.T, known, strict=True):
        places = (free & (labels == label)).nonzero()[:, 0]
        if len(places):
            coordinates[places[0]] = one
            free[places[0]] = False
    return labels, replace(start, coordinates=coordinates)
