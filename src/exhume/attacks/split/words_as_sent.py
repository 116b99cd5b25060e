"""Look at what a client sends for a text: numbers that are words already, before anything is trained."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.releases import features_of
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
    Store,
    silent,
)


@dataclass(frozen=True)
class WordsAsSent:
    """Take the largest of as many numbers as there are words for the word, or a single number for its own.

    Sees: `Activations`, what the client sends for n texts.
    Assumes: how many words there are.
    Guarantees: nothing is trained, and nothing about the truth is used. Confidence is the share of places
    at which what was sent is such a word to rounding.
    Reference: none; the first thing that anybody would try.
    """

    vocabulary: int

    def __post_init__(self) -> None:
        if self.vocabulary < 1:
            raise ExhumeError(f"vocabulary: at least 1 needed, got {self.vocabulary}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedWordsAsSent:
        knowledge.require("looking at what was sent", "shadow", "features")
        assert knowledge.shadow is not None
        assert knowledge.features is not None
        shape, features = knowledge.shadow.shape, knowledge.features
        wide = features[1] if len(features) == 2 else 1
        if features[:1] != shape or len(features) > 2 or wide not in (1, self.vocabulary):
            raise NotApplicable(
                f"features of shape {features} are no words by themselves: neither one number for each of "
                f"{shape[0]} places nor one for each of {self.vocabulary:,} words",
                ever=False,
            )
        return PreparedWordsAsSent(self.vocabulary, features)


@dataclass(frozen=True, eq=False)
class PreparedWordsAsSent:
    vocabulary: int
    features: tuple[int, ...]

    def run(self, releases: Release) -> Reconstruction:
        started = time.perf_counter()
        wanted = f"{self.features} were expected"
        values = features_of(releases, self.features[:1], self.features, wanted)
        if isinstance(values, Reconstruction):
            return values
        tokens, plain = self._words(values.flatten(2) if values.ndim > 2 else values[:, :, None])
        return Reconstruction(
            tokens[:, None],
            plain.double().mean(1)[:, None],
            Status(Outcome.CONVERGED),
            Cost(time.perf_counter() - started),
        )

    def _words(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(n, l, e) to tokens (n, l), and where they are exactly what was sent."""
        if values.shape[2] == 1:
            tokens = values[:, :, 0].round().clamp(0, self.vocabulary - 1).long()
            return tokens, torch.isclose(values[:, :, 0], tokens.to(values.dtype))
        tokens = values.argmax(2)
        one_hot = torch.nn.functional.one_hot(tokens, self.vocabulary).to(values.dtype)
        return tokens, torch.isclose(values, one_hot).all(2)
