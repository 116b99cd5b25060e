"""Whole texts from the gradient of a language model: by the spans of its layers.

1. *Tokens.* The first attention layer sees one vector a token and place; those of the batch span the rows of
   its gradient (queries, keys and values: the first place of a causal model leaves nothing in the queries).
2. *Texts.* What later layers see depends on the places before (a causal model is read from left to right,
   forward_reading.py) or on all places (an encoder's texts are searched for, whole_reading.py).
3. *What the loss asked for* beyond the texts as fed: the last token of a text, or what a mask hides
   (targets.py). Then the whole update can be computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.attacks.gradient.text.forward_reading import read_forward
from exhume.attacks.gradient.text.spans import precision_of
from exhume.attacks.gradient.text.targets import Asked, asked_for
from exhume.attacks.gradient.text.traces import Traces, traces_of
from exhume.attacks.gradient.text.whole_reading import Search, read_whole
from exhume.attacks.gradient.text.word_rows import gradient_of
from exhume.core.contract import (
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)
from exhume.models.own.language import LanguageModel

__all__ = ["LanguageAttack", "PreparedLanguage", "language_model"]

_FINE = 1e-5  # relative rounding with which a span alone certifies a text
_SAME = 1e-4  # relative: vectors of the same place


@dataclass(frozen=True)
class LanguageAttack:
    """Recover whole token sequences from the gradient of a language model, batch size unknown.

    Sees: `Gradient`: the linear layers up to the last attention, and the output weight.
    Assumes: the architecture (`LanguageModel`) with its loss; attention; fewer places in the batch than its
    layers are wide. One gradient: after several local steps the spans are those of several models.
    Guarantees: every candidate lies in the spans of all layers at every place, and where the recomputed
    update is the one seen (`explained`), the candidates are its texts. Texts as fed: masks are left as they
    are. Equal texts of a batch are found once.
    Reference: Petrov et al. 2024 (DAGER) for the spans of two layers; all layers, any module, encoders by
    sums and assignment, the last token and the hidden ones from the outputs: ours.
    """

    search: Search = Search()
    explained: float = 1e-3  # relative residual up to which the update is the one of the candidates

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedLanguage:
        net = language_model(knowledge)
        if not any(not site.local for site in net.sites):
            raise NotApplicable(
                f"{net}: no trained linear layer sees what attention has mixed", ever=False
            )
        return PreparedLanguage(self, net, key, progress)


@dataclass(frozen=True, eq=False)
class PreparedLanguage:
    attack: LanguageAttack
    net: LanguageModel
    key: Key
    progress: Progress

    def run(self, releases: Release) -> Reconstruction:
        shape = (self.net.length,)
        each = EachGradient(shape, self._one, "a text", "reading texts", self.progress)
        return each.run(gradient_of(releases, self.net))

    def _one(self, values: Tensor, at: Tensor, place: int) -> Batch:
        nothing = torch.zeros(0, self.net.length, dtype=torch.int64)
        try:
            traces = traces_of(self.net, values, at)
            texts, real = self._texts(traces, self.key.fold(place))
        except NotApplicable as why:
            return Batch(nothing, torch.zeros(0), {}, refused=why)
        if not len(texts):
            none = NotApplicable("no text lies in the spans of all layers", ever=True)
            return Batch(nothing, torch.zeros(0), {}, refused=none)
        texts, real, asked = self._explained(traces, texts, real, values, at)
        worst = traces.worst(texts, traces.mixed).masked_fill(~real, 0).amax(1)
        rounding = precision_of(values)
        proved = asked.residual < max(self.attack.explained, rounding)
        if self.net.loss == "next-token":
            texts = _with_last(texts, real, asked, self.net.padding)
        if not proved:  # coarse spans hold what was never seen
            sure = asked.sure & (rounding < _FINE)
            texts, worst = texts[sure], worst[sure]
        observed = {"explained": max(0.0, 1 - asked.residual), "rank": float(_rank(traces))}
        return Batch(texts, -worst.double(), observed, complete=proved)

    def _texts(self, traces: Traces, key: Key) -> tuple[Tensor, Tensor]:
        """(n, l) texts as fed, and which of their places leave a trace."""
        allowed = traces.allowed()
        fill = self.net.padding
        if not self.net.causal:
            found = read_whole(traces, allowed, self.attack.search, key)
            texts = torch.stack([torch.zeros(self.net.length).long(), *found])[1:]
            return texts, torch.ones_like(texts).bool() if fill is None else texts != fill
        whole = self.net.length - (self.net.loss == "next-token")
        rows = read_forward(traces, allowed, whole)
        rows = [row for row in rows if fill is not None or len(row) == whole]
        texts = torch.full((len(rows), self.net.length), fill or 0)
        real = torch.zeros_like(texts).bool()
        for place, row in enumerate(rows):
            texts[place, : len(row)], real[place, : len(row)] = row, True
        return texts, real

    def _explained(
        self, traces: Traces, texts: Tensor, real: Tensor, values: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor, Asked]:
        """Without texts that leave no trace of their own, if the others explain the update."""
        own = _own_traces(traces, texts, real)
        asked = self._asked(texts[own], real[own], values, at) if bool(own.any()) else None
        if asked is None or not (bool(own.all()) or asked.residual < self.attack.explained):
            every = self._asked(texts, real, values, at)
            if asked is None or every.residual < self.attack.explained:
                return texts, real, every
        return texts[own], real[own], asked

    def _asked(self, texts: Tensor, real: Tensor, values: Tensor, at: Tensor) -> Asked:
        if self.net.loss == "masked":
            opened = (texts == self.net.mask) & real
            targets = torch.full_like(texts, -100)
        else:
            targets = torch.full_like(texts, -100)
            targets[:, :-1] = texts[:, 1:].masked_fill(~real[:, 1:], -100)
            last = real.sum(1) - 1
            opened = torch.zeros_like(real)
            opened[torch.arange(len(texts)), last] = True
            targets = targets.masked_fill(~real, -100)
        return asked_for(self.net, values, at, texts, targets, opened=opened)


def language_model(knowledge: Knowledge) -> LanguageModel:
    if not isinstance(knowledge.architecture, LanguageModel):
        raise NotApplicable(
            f"architecture: texts are read off a LanguageModel, not {knowledge.architecture}",
            ever=True,
        )
    return knowledge.architecture


def _with_last(texts: Tensor, real: Tensor, asked: Asked, padding: int | None) -> Tensor:
    """The token that the last place was asked for follows it."""
    whole = texts.clone()
    rows, last = torch.arange(len(texts)), real.sum(1) - 1
    found = asked.targets[rows, last]
    whole[rows, last + 1] = torch.where(found >= 0, found, padding or 0)
    return whole


def _own_traces(traces: Traces, texts: Tensor, real: Tensor) -> Tensor:
    """(n,) bool: some vector of the text is no other text's.

    A model that does not know where a text begins sees a, aa and aaa alike.
    """
    (seen,) = traces.net.seen(traces.at, texts, [traces.mixed[-1][0]])
    vectors, owner = seen[real].double(), torch.arange(len(texts))[:, None].expand_as(real)[real]
    sizes = vectors.norm(dim=1)
    alike = torch.cdist(vectors, vectors) < _SAME * sizes
    others = alike & (owner[:, None] != owner)
    own = ~others.any(1)
    found = [bool(own[owner == i].any()) for i in range(len(texts))]
    return torch.tensor(found, dtype=torch.bool)


def _rank(traces: Traces) -> int:
    return max(span.rank for _, span in traces.mixed)
