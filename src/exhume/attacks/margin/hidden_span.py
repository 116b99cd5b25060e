"""Training images one by one, from the row span of the second layer.

Weight decay removes what a layer was at the start. What is left of the second layer is a sum over the
training records, W2 = sum_i s_i h(x_i)ᵀ with h(x) = relu(W1 x + b), so the hidden activations of every
training record lie in its row span Q, n directions of k. That is a condition on one input at a time:

    f(x) = ||h(x) - QᵀQ h(x)||² / ||h(x) - FᵀF h(x)||²          F: nothing in the first round

k - n equations for the r = n - 1 coordinates of x in the row span of the first layer; no multipliers, no
labels, no other candidates. Many random starts go down together, at a tenth of the cost of eq. (6).
Records attract unequally, so there are rounds: F spans the activations of what is found, which
takes those records out of reach and leaves the others.

Memory: m·k numbers for m starts; it does not grow with the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from exhume.attacks.margin.descent import Descent, fall, stepper
from exhume.attacks.margin.pool import Run, by_own_confidence, distinct
from exhume.attacks.margin.reading import Reader
from exhume.attacks.margin.residual import Span
from exhume.attacks.margin.restarts import Restarts
from exhume.contract import Key, Knowledge, NotApplicable, Progress, Store, silent
from exhume.models.heads import Head
from exhume.models.matrices import Matrices

__all__ = ["HiddenSpan", "second_layer"]

_OFTEN = 3  # starts that end at the same image make it certain
_LEFT = 1e-3  # share of the second layer's square that may lie outside the span
_TINY = 1e-12  # the distances are as small as 1e-7, their gradients too


@dataclass(frozen=True)
class HiddenSpan:
    """Reconstruct training records whose hidden activations span the second layer.

    Sees: `Weights`, r networks, each trained on its own unknown records with weight decay.
    Assumes: the architecture, with two hidden layers or more; optionally the mean that the released
    preprocessing subtracts.
    Guarantees: nothing about the truth is used. Every round is a piece of work of its own: a killed run
    goes on where it was and ends with the same bits. A second layer that keeps its start is refused.
    Reference: ours; Buzaglo23 for the victims and the first layer's share in the idea.
    """

    head: Head = "multiclass"
    restarts: int = 6  # rounds
    starts: float = 2.5  # of a round, per training record
    widen: float = 1.5  # directions of Q per training record: activations drift while training
    contrast: float = 0.22  # standard deviation of a start's pixels
    largest: float = 0.29  # and at most
    same: float = 0.9  # cosine above which two candidates are one image
    trust: float = 3.0  # found: f below so many times that of images that several starts end at
    descent: Descent = Descent(steps=300, rate=2.0)

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
        rows_of: Callable[[Span], Tensor],
        parameters: Tensor,
        key: Key,
        earlier: list[Run],
        progress: Callable[[int], None],
    ) -> Run:
        span = reader.span(parameters, None)
        rows = rows_of(span)
        problem = _Problem(span.network, rows, self._found(earlier, span))
        coordinates, lost = self._descend(problem, span, key, progress)
        distance, _ = _Problem(span.network, rows).at(coordinates)
        labels, records = _labels(span.network, coordinates), float(len(span.basis) + 1)
        inputs = span.inputs(coordinates)
        return Run(inputs, labels, -distance, float(distance.median()), lost, records)

    def _descend(
        self, problem: _Problem, span: Span, key: Key, progress: Callable[[int], None]
    ) -> tuple[Tensor, float]:
        """(m, r) where the starts end, and the step at which they stopped being finite or -1."""
        root = math.sqrt(span.basis.shape[1])
        spread = span.values.sqrt()
        spread = spread * (self.contrast * root / spread.norm())
        shape = (round(self.starts * (len(spread) + 1)), len(spread))
        scaled = torch.randn(shape, generator=key.generator(), dtype=torch.float64).to(spread)
        step = stepper(self.descent.method, [scaled], [self.descent.rate], _TINY)
        kept = scaled.clone()
        for index in range(self.descent.steps):
            value, gradient = problem.at(scaled * spread)
            if not bool(torch.isfinite(value).all()):
                return kept * spread, float(index)
            kept = scaled.clone()
            step([gradient * spread], fall(self.descent, index))
            norms = (scaled * spread).norm(dim=1, keepdim=True)
            scaled.mul_((self.largest * root / norms).clamp(max=1))
            progress(index + 1)
        return scaled * spread, -1.0

    def _found(self, earlier: list[Run], span: Span) -> Tensor | None:
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
        basis: Tensor = torch.linalg.qr(hidden.double().T)[0].T.to(hidden)
        return basis


def second_layer(span: Span, widen: float) -> Tensor:
    """Q (q, k): the leading right singular vectors of the second layer; refuses one that keeps its start."""
    matrix = span.network.later[0].double()
    count = round(widen * (len(span.basis) + 1))
    _, values, rows = torch.linalg.svd(matrix, full_matrices=False)
    left = float(values[count:].square().sum() / values.square().sum())
    if count >= len(values) or left > _LEFT:
        raise NotApplicable(
            f"fc2.weight: {left:.1%} of its square lies outside {count} directions, so it keeps its random "
            "start, which weight decay would have removed, or has too few neurons",
            ever=False,
        )
    leading: Tensor = rows[:count].to(span.network.first.dtype)
    return leading


@dataclass(frozen=True, eq=False)
class _Problem:
    network: Matrices
    rows: Tensor  # Q (q, k), orthonormal
    found: Tensor | None = None  # F (f, k), orthonormal

    def at(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """f (m,) at (m, r), and df/dC (m, r)."""
        entering = coordinates @ self.network.first.T + self.network.bias
        hidden = self.network.act.apply(entering)
        outside = _without(hidden, self.rows)
        new = hidden if self.found is None else _without(hidden, self.found)
        size = new.square().sum(1, keepdim=True).clamp_min(1e-30)
        share = outside.square().sum(1, keepdim=True) / size
        slope = self.network.act.slope(entering, hidden)
        by_hidden = (outside - share * new).mul_(2 / size).mul_(slope)
        return share[:, 0], by_hidden @ self.network.first


def _without(vectors: Tensor, rows: Tensor) -> Tensor:
    """(m, k) less its part in the span of orthonormal rows."""
    return torch.addmm(vectors, vectors @ rows.T, rows, alpha=-1)


def _labels(network: Matrices, coordinates: Tensor) -> Tensor:
    """(m,) what the network says: it has learnt its training records."""
    outputs = network.forward(coordinates)[1]
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)
