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

Memory: m·k numbers for m starts; it does not grow with the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from exhume.attacks.margin.restarts import Restarts, by_own_confidence, distinct, said
from exhume.core.contract import Key, Knowledge, NotApplicable, Progress, Store, silent
from exhume.models.heads import Head
from exhume.models.matrices import Matrices

_OFTEN = 3  # starts that end at the same image make it certain
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
        near = [run.explained >= limit for run in earlier]
        inputs = [first.inputs[heads[certain]]]
        inputs += [run.inputs[mask] for run, mask in zip(earlier, near, strict=True)]
        sure = [torch.zeros_like(first.explained[heads[certain]])]  # these first
        sure += [run.explained[mask] for run, mask in zip(earlier, near, strict=True)]
        all_inputs = torch.cat(inputs)
        kept, _ = distinct(all_inputs, torch.cat(sure), self.same)
        network = span.network
        hidden = network.act.apply(network.forward(all_inputs[kept] @ span.basis.T)[0][0])
        return orthonormal(hidden)


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
