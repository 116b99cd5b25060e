"""Tokens of somebody else's text classifier: the words of a batch, and whole sentences.

1. *Which words.* A trained embedding has a gradient in the rows of its batch's tokens only (word_rows.py).
2. *Vectors.* What enters the first fully connected layer is recovered by the bias ratio.
3. *Sentences.* Where that vector is the embeddings side by side, each place is the nearest token; where it
   is a mean of what every token gives alone, it is a sum of whole numbers of them. Of any other network
   (attention) sentences are tried: each place takes the tokens that the rows allow and, where a layer sees
   the places one by one, those whose vector lies in the span of its gradient; the network itself says what
   vector they give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.analytic import BiasRatio
from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.attacks.gradient.text.embeddings import counted, in_place, in_span
from exhume.attacks.gradient.text.pooling import Pooling, pooling_of
from exhume.attacks.gradient.text.sentences import Assembly
from exhume.attacks.gradient.text.word_rows import gradient_of, text_model, words_in
from exhume.core.contract import (
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)
from exhume.models.mlp import MLP
from exhume.models.own.text import TextModel

__all__ = ["PreparedText", "TextAttack"]

_MOST = 4000  # tokens of which a mean can be made up
_VECTORS = 16  # that are read as sums before it is asked whether more are needed
_CHUNK = 2048  # sentences that go through the network at once


@dataclass(frozen=True)
class TextAttack:
    """Recover token sequences from the gradient of any text classifier.

    Sees: `Gradient`: the embedding, where it is trained; the layers that see places or records one by one.
    Assumes: the architecture (`TextModel`); a fully connected layer with a bias behind the pooling.
    Guarantees: the network gives a candidate's vector back up to `tolerance`; minus the misfit is the
    confidence. Where the order does not change the vector, a candidate has none (sorted). Records whose
    vector is not found stay unfound.
    Reference: Wang23 (embeddings first, then tokens); Melis et al. 2019 for the rows; Petrov et al. 2024
    for the span of local layers. The search for sentences by the network itself: ours.
    """

    tolerance: float = 1e-3  # relative misfit from which a vector is no sentence's
    agreeing: int = 3  # neurons that must agree on a vector whose text has to be searched for
    largest: int = 20_000  # sentences up to which all are tried
    starts: int = 24  # of the search for them otherwise
    options: int = 300  # tokens a place may have, on average, for a search
    pairs: int = 400_000  # sentences of one sweep up to which two places are changed at a time

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedText:
        net = text_model(knowledge)
        if not net.head and not net.local:
            raise NotApplicable(
                f"{net}: no fully connected layer with a bias sees its records or places one by one",
                ever=False,
            )
        return PreparedText(self, net, knowledge.batch_size, key, store, progress)


@dataclass(frozen=True, eq=False)
class PreparedText:
    attack: TextAttack
    net: TextModel
    batch_size: int | None
    key: Key
    store: Store
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        shape = (self.net.length,)
        each = EachGradient(shape, self._one, "a text", "reading texts", self.progress)
        return each.run(gradient_of(releases, self.net))

    def _one(self, values: Tensor, at: Tensor, _: int) -> Batch:
        words = words_in(self.net, values)
        allowed = torch.arange(self.net.vocabulary) if words is None else self._and_padding(words)
        pooling = pooling_of(self.net, at) if self.net.head else Pooling("other", ordered=True)
        reason, features = self._features(values, searched=pooling.kind == "other")
        try:
            tokens, misfit = self._read(pooling, features, values, at, allowed)
        except NotApplicable as why:
            reason, tokens, misfit = why.why, torch.zeros(0, self.net.length).long(), torch.zeros(0)
        sure = misfit < self.attack.tolerance
        tokens, misfit = _different(tokens[sure], misfit[sure])
        refused = None
        if not len(tokens):
            reason = reason or "what enters the fully connected layers is no text's vector"
            refused = NotApplicable(reason, ever=True)
        observed = {} if words is None else {"occurring": float(len(words))}
        observed["ordered"] = float(pooling.ordered)
        return Batch(tokens, -misfit.double(), observed, refused=refused)

    def _and_padding(self, words: Tensor) -> Tensor:
        if self.net.padding is None:
            return words
        both = torch.cat([words, torch.tensor([self.net.padding])])
        found: Tensor = torch.unique(both)
        return found

    def _features(self, values: Tensor, *, searched: bool) -> tuple[str, Tensor]:
        """(b, d) what entered the head, by the ratio of its gradients; or why there is none.

        searched: reading a vector takes long. Else one neuron is enough: a mixture is no text's vector.
        """
        if not self.net.head:
            return "no fully connected layer with a bias sees one vector a record", torch.zeros(
                0, 1
            )
        parts = self.net.layout.split(values)
        weight, bias = (parts[f"{self.net.head}.{name}"] for name in ("weight", "bias"))
        head = MLP((weight.shape[1],), (), len(weight), "relu")
        flat = torch.cat([weight.flatten(), bias])[None]
        agreeing = min(self.attack.agreeing, len(weight)) if searched else 1
        largest = BiasRatio.largest if searched else len(weight)
        route = BiasRatio(agreeing, self.attack.tolerance, largest)
        found = route.prepare(Knowledge(architecture=head), key=self.key, store=self.store).run(
            Gradient(flat, head.layout, torch.zeros_like(flat[0]))
        )
        reason = "no neurons of the first fully connected layer agree on a text"
        return reason if not found.candidates.shape[1] else "", found.candidates[0].double()

    def _read(
        self, pooling: Pooling, features: Tensor, values: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(b, l) tokens and (b,) relative misfits."""
        if pooling.kind == "other":
            return self._assembled(features, values, at, allowed)
        if not len(features):
            return torch.zeros(0, self.net.length).long(), torch.zeros(0)
        if pooling.kind == "flatten":
            return in_place(features - pooling.offset, self.net.table(at).double(), allowed)
        if len(allowed) > _MOST:
            raise NotApplicable(f"{len(allowed)} tokens come into question for a mean", ever=True)
        return self._summed(pooling.kind == "masked", features, at, allowed)

    def _summed(
        self, masked: bool, features: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Texts of the vectors, the surest first, until there are as many as the batch has records."""
        own = allowed[allowed != self.net.padding] if masked else allowed
        alone = self._through(at, own[:, None].expand(-1, self.net.length))
        tokens, misfit = torch.zeros(0, self.net.length).long(), torch.zeros(0).double()
        for part in torch.split(features, _VECTORS):
            found, apart = self._sums(masked, part, alone, own)
            tokens, misfit = torch.cat([tokens, found]), torch.cat([misfit, apart])
            different = torch.unique(tokens[misfit < self.attack.tolerance], dim=0)
            if self.batch_size is not None and len(different) >= self.batch_size:
                break
        return tokens, misfit

    def _sums(
        self, masked: bool, features: Tensor, alone: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Whole numbers of what every token gives alone; of fewer tokens where padding is left out."""
        fill = self.net.padding or 0
        tokens = torch.full((len(features), self.net.length), fill)
        misfit = torch.ones(len(features), dtype=torch.float64)
        for count in range(1, self.net.length + 1) if masked else (self.net.length,):
            places, apart = counted(features * count, alone, torch.arange(len(own)), count)
            better = (apart < misfit) & (misfit >= self.attack.tolerance)  # the shortest that fits
            tokens[better] = fill
            tokens[better, :count] = own[places[better]]
            misfit[better] = apart[better]
        order = ((tokens == fill) if self.net.padding is not None else tokens < 0).long()
        return tokens.gather(1, order.argsort(dim=1, stable=True)), misfit

    def _through(self, at: Tensor, tokens: Tensor) -> Tensor:
        parts = torch.split(tokens, _CHUNK)
        return torch.cat([self.net.features(at, part) for part in parts]).double()

    def _assembled(
        self, features: Tensor, values: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sentences whose vector the network itself computes; first those that the span allows."""
        places, distances = self._places(values, at, allowed)
        if math.prod(len(place) for place in places) == 1:
            single = torch.tensor([[place[0] for place in places]])
            return single, torch.tensor([max(distances)], dtype=torch.float64)
        if not len(features):
            return torch.zeros(0, self.net.length).long(), torch.zeros(0)
        everywhere = [allowed.tolist()] * self.net.length
        tokens = torch.zeros(len(features), self.net.length, dtype=torch.int64)
        misfit = torch.ones(len(features), dtype=torch.float64)
        if all(places) and places != everywhere:
            tokens, misfit = self._fitted(places, features, at)
        wanted = (self.batch_size or 1) - int((misfit < self.attack.tolerance).sum())
        left = (misfit >= self.attack.tolerance).nonzero()[: max(0, wanted), 0]
        if len(left):  # some places may leave no trace in the layer that sees them
            tokens[left], misfit[left] = self._fitted(everywhere, features[left], at)
        return tokens, misfit

    def _fitted(
        self, places: list[list[int]], features: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor]:
        if sum(len(place) for place in places) > self.attack.options * self.net.length:
            raise NotApplicable(
                f"more than {self.attack.options} tokens a place come into question", ever=True
            )
        return Assembly(
            places,
            lambda tokens: self._through(at, tokens),
            self.attack.largest,
            self.attack.starts,
            self.key.fold("sentences"),
            self.attack.pairs,
        ).fit(features, self.batch_size or len(features))

    def _places(
        self, values: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[list[list[int]], list[float]]:
        """The tokens of every place: by the span of local layers where they have a gradient."""
        parts = self.net.layout.split(values)
        # queries, keys and values in one tensor differ in size by magnitudes: each for itself
        slopes = [
            slope
            for name in self.net.local
            for slope in (
                parts[name].chunk(3) if name.endswith("in_proj_weight") else (parts[name],)
            )
            if float(slope.norm()) > 0
        ]
        if not slopes:
            return [allowed.tolist()] * self.net.length, [math.inf] * self.net.length
        vectors = torch.cat(
            [self.net.vectors(at, part.tolist()) for part in torch.split(allowed, _CHUNK)], 1
        )
        places, worst = in_span(slopes, vectors, allowed, self.attack.tolerance)
        if self.net.padding is not None:  # a place that is masked out leaves no trace
            places = [sorted({*place, self.net.padding}) for place in places]
        return places, worst


def _different(tokens: Tensor, misfit: Tensor) -> tuple[Tensor, Tensor]:
    """Every sentence once, with its smallest misfit."""
    order = misfit.argsort(stable=True)
    seen: dict[tuple[int, ...], int] = {}
    for place in order.tolist():
        seen.setdefault(tuple(tokens[place].tolist()), place)
    kept = torch.tensor(sorted(seen.values()), dtype=torch.int64)
    return tokens[kept], misfit[kept]
