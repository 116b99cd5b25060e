"""Which tokens stand behind a gradient, of which record, and where.

1. *Which occur at all.* A trained embedding has a gradient in the rows of its batch's tokens only.
2. *Whole records, flattened or averaged.* What enters the first fully connected layer is recovered like any
   record (bias ratio, span), then read as embeddings: the nearest token a place, or the whole
   numbers n_v with sum_v n_v E_v = l · mean.
3. *Attention.* dL/dW = sum_il delta_il norm(E_t + P_l)^T for queries, keys and values: the tokens of place
   l are those whose vector lies in the rows of the three. Each alone falls short (with one head the deltas
   of queries and of keys are dependent, those of values are one vector a record); together they do not.
   Sentences are put together by the averages that route 2 recovers (sentences.py).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.attacks.gradient.analytic import BiasRatio
from exhume.attacks.gradient.gathering import Batch, gather
from exhume.attacks.gradient.text.embeddings import counted, in_place, placed, records_behind
from exhume.attacks.gradient.text.sentences import Assembly
from exhume.contract import (
    Attack,
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Prepared,
    Progress,
    Reconstruction,
    Release,
    Status,
    Store,
    silent,
)
from exhume.models.tokens import TokenNet

__all__ = ["PreparedTokens", "TokenAttack", "occurring"]

_DENSE = (
    0.5  # share of the vocabulary beyond which rows say nothing: tied embeddings touch them all
)


@dataclass(frozen=True)
class TokenAttack:
    """Recover token sequences from the gradient of a `TokenNet`.

    Sees: `Gradient`: the embedding, where it is trained; the first layers.
    Assumes: the architecture; for attention, about as many tokens in the batch as an embedding has numbers.
    Guarantees: a candidate is right up to `tolerance`; minus its misfit is the confidence. Averaging hides
    the order: such a candidate is sorted. Records that `route` does not find stay unfound.
    Reference: Wang23 (embeddings first, then tokens); Melis et al. 2019 for the rows; Petrov et al. 2024
    for attention's span. Sentences of several records are put together by their averages: ours.
    """

    route: Attack = BiasRatio(agreeing=3)  # to what enters the fully connected layers
    tolerance: float = 1e-3  # relative misfit from which a vector is no token's
    largest: int = 50_000  # sentences behind attention up to which all are tried
    starts: int = 24  # of the search for them otherwise

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedTokens:
        net = knowledge.architecture
        if not isinstance(net, TokenNet):
            raise NotApplicable(
                f"architecture: tokens are read off a TokenNet, not {net}", ever=True
            )
        route = self.route.prepare(
            Knowledge(architecture=net.head, batch_size=knowledge.batch_size),
            key=key.fold("route"),
            store=store,
        )
        return PreparedTokens(self, net, route, key, progress)


def occurring(net: TokenNet, values: Tensor) -> Tensor:
    """(p,) a gradient to (v,) bool: tokens that may occur; all, where the embedding does not tell."""
    if net.frozen:
        return torch.ones(net.vocabulary, dtype=torch.bool)
    touched = net.layout.split(values)["embed"].abs().sum(1) > 0
    if float(touched.double().mean()) > _DENSE:
        return torch.ones_like(touched)
    return touched


@dataclass(frozen=True, eq=False)
class PreparedTokens:
    attack: TokenAttack
    net: TokenNet
    route: Prepared
    key: Key
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        if not isinstance(releases, Gradient):
            why = NotApplicable("tokens are read off gradients, not weights", ever=False)
            return Reconstruction.none(0, (self.net.length,), why)
        if releases.layout != self.net.layout:
            raise ExhumeError(f"release: its layout is not that of {self.net}")
        started = time.perf_counter()
        batches = []
        for i, values in enumerate(releases.values):
            at = releases.at if releases.at.ndim == 1 else releases.at[i]
            batches.append(self._one(values, at))
            self.progress("reading tokens", i + 1, len(releases.values))
        return gather(batches, (self.net.length,), time.perf_counter() - started)

    def _one(self, values: Tensor, at: Tensor) -> Batch:
        """What one gradient gives."""
        table, allowed = self.net.table(at).double(), occurring(self.net, values).nonzero()[:, 0]
        found = self._features(values, at)
        features = found.candidates[0].double()
        match self.net.pool:
            case "flatten":
                tokens, misfit = in_place(features, table, allowed)
            case "mean":
                tokens, misfit = counted(
                    features * self.net.length, table, allowed, self.net.length
                )
            case _:
                tokens, misfit = self._attended(features, values, at, allowed)
        sure = misfit < self.attack.tolerance
        observed = {"occurring": float(len(allowed))} if len(allowed) < len(table) else {}
        why = None
        if not bool(sure.any()):
            reason = found.status.reason or "what came back is no embedding of tokens"
            why = Status(Outcome.NOT_APPLICABLE, reason, ever=True)
        same = found.labels is not None and len(tokens) == len(features)
        labels = found.labels[0] if same and found.labels is not None else -torch.ones(len(tokens))
        return Batch(
            tokens[sure].to(values.dtype),
            -misfit[sure],
            labels.long()[sure],
            observed,
            complete=bool(sure.any()),
            refused=why,
        )

    def _features(self, values: Tensor, at: Tensor) -> Reconstruction:
        """What entered the fully connected layers, by the route; only what the route is sure of."""
        head = self.net.head
        size = head.layout.size
        release = Gradient(values[None, -size:], head.layout, at[-size:])
        try:
            found = self.route.run(release)
        except NotApplicable as why:
            return Reconstruction.none(1, tuple(head.input_shape), why)
        if found.status.outcome is Outcome.NOT_APPLICABLE:
            refused = NotApplicable(found.status.reason, ever=found.status.ever)
            return Reconstruction.none(1, tuple(head.input_shape), refused)
        return found

    def _attended(
        self, features: Tensor, values: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens of every place from the span of the projections' gradients, put together into sentences."""
        places, distances = placed(self.net, values, at, allowed, self.attack.tolerance)
        count = math.prod(len(place) for place in places)
        if count == 1:
            single = torch.tensor([[place[0] for place in places]])
            return single, torch.tensor([max(distances)], dtype=torch.float64)
        if not count or not len(features):
            return torch.zeros(0, self.net.length), torch.zeros(0, dtype=torch.float64)
        lower = _Features(self.net.build().double())
        given = {f"net.{n}": t.double() for n, t in self.net.layout.split(at).items()}
        return Assembly(
            places,
            lambda tokens: functional_call(lower, given, tokens),
            self.attack.largest,
            self.attack.starts,
            self.key.fold("sentences"),
        ).fit(features, records_behind(self.net.layout.split(values)["value"]))


class _Features(nn.Module):
    """The lower part of a token module, callable like a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.net.features(tokens))  # type: ignore[operator]
