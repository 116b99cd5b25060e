"""The words of a batch: the rows of a trained embedding that have a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.gathering import Batch, EachGradient
from exhume.core.contract import (
    ExhumeError,
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
from exhume.models.own.text import TextModel

__all__ = ["PreparedRows", "WordRows", "gradient_of", "text_model", "words_in"]

_DENSE = 0.5  # share of the rows beyond which they say nothing: tied or noisy embeddings touch all


def words_in(net: TextModel, values: Tensor) -> Tensor | None:
    """(p,) a gradient to the tokens (a,) with a row that is not zero; None where the rows do not tell."""
    rows = net.layout.split(values).get(net.embedding)
    if rows is None:
        return None
    touched = rows.abs().sum(1) > 0
    if not bool(touched.any()) or float(touched.double().mean()) > _DENSE:
        return None
    return touched.nonzero()[:, 0]


@dataclass(frozen=True)
class WordRows:
    """The list of words behind an update, in no order.

    Sees: `Gradient`, the embedding's rows.
    Assumes: a trained embedding that is not tied to the outputs, plain SGD, no noise.
    Guarantees: a row that is not zero was used by the batch. Words that are used but do not change
    anything (padding) are missed. Candidates are single tokens (1,).
    Reference: Melis et al. 2019.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedRows:
        return PreparedRows(text_model(knowledge))


@dataclass(frozen=True, eq=False)
class PreparedRows:
    net: TextModel

    def run(self, releases: Release) -> Reconstruction:
        each = EachGradient((1,), self._one, "a list of words", "reading words")
        return each.run(gradient_of(releases, self.net))

    def _one(self, values: Tensor, _: Tensor, __: int) -> Batch:
        words = words_in(self.net, values)
        if words is None:
            reason = (
                "the embedding does not tell which words occur: it is frozen, or most rows change"
            )
            nothing = torch.zeros(0, 1, dtype=torch.int64)
            return Batch(nothing, torch.zeros(0), {}, refused=NotApplicable(reason, ever=False))
        return Batch(words[:, None], self._sizes(values)[words], {})

    def _sizes(self, values: Tensor) -> Tensor:
        rows = self.net.layout.split(values)[self.net.embedding]
        sizes: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return sizes.double()


def text_model(knowledge: Knowledge) -> TextModel:
    if not isinstance(knowledge.architecture, TextModel):
        raise NotApplicable(
            f"architecture: texts are read off a TextModel, not {knowledge.architecture}", ever=True
        )
    return knowledge.architecture


def gradient_of(releases: Release, net: TextModel) -> Gradient:
    if not isinstance(releases, Gradient):
        raise NotApplicable("texts are read off gradients, not weights", ever=False)
    if releases.layout != net.layout:
        raise ExhumeError(f"release: its layout is not that of {net}")
    return releases
