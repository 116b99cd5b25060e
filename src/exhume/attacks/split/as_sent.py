"""Look at what a client sends, before anything is trained: its features as pictures, its numbers as words.

A head that does little (nothing at all, a change of brightness, few filters) sends something that looks like
its input. The channel whose mean over requests resembles the mean of the attacker's own records is shown,
scaled to their brightness and contrast. Moments leave the sign open: both are candidates, the likelier
first. Numbers sent for a text may be words already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.releases import Answer, EachSent
from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Records,
    Store,
    silent,
)


@dataclass(frozen=True)
class AsSent:
    """Show the features themselves as images.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: records like the client's, for brightness and contrast; features that the client sent before;
    features that are maps, or as many numbers as an input has.
    Guarantees: nothing is trained, and nothing about the truth is used. Confidence is how much the mean of
    what was sent resembles the mean of the records held.
    Reference: none; the first thing that anybody would try.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachSent:
        held, features, seen = knowledge.require(
            "looking at what was sent", "shadow", "features", "seen"
        )
        shape = held.shape
        if len(shape) != 3 or (len(features) != 3 and math.prod(features) != math.prod(shape)):
            raise NotApplicable(f"features of shape {features} are no pictures", ever=False)
        shown = _Shown(held, features, seen).answer
        return EachSent(shape, features, f"{features} were expected", shown)


@dataclass(frozen=True, eq=False)
class _Shown:
    held: Records
    features: tuple[int, ...]
    seen: Tensor  # (m, *features)

    def answer(self, values: Tensor) -> Answer:
        shape = self.held.shape
        maps, before = self._maps(values), self._maps(self.seen)
        # (sent, colours) correlation of every channel's mean picture with every colour's
        sent, colour = (
            F.normalize(m.flatten(1) - m.flatten(1).mean(1, keepdim=True))
            for m in (before.mean(0), self.held.inputs.double().mean(0))
        )
        alike = sent @ colour.T
        colours = torch.arange(shape[0], device=values.device)
        likest = alike.abs().sum(1).argmax().expand(shape[0])
        picked = colours if maps.shape[1] == shape[0] else likest  # a channel for each colour
        signs = torch.where(alike[picked, colours] < 0, -1.0, 1.0)
        shown = [self._scaled(maps[:, picked], before[:, picked], signs * s) for s in (1, -1)]
        either = torch.stack(shown, dim=1)
        likeness = alike[picked, colours].abs().mean()
        confidence = torch.stack([likeness, -likeness]).expand(len(values), 2)
        return either.to(values.dtype), confidence

    def _maps(self, values: Tensor) -> Tensor:
        """(n, k, h, w) of a record's height and width."""
        shape = self.held.shape
        maps = values if len(self.features) == 3 else values.reshape(len(values), *shape)
        return F.interpolate(maps.double(), shape[1:], mode="bilinear", align_corners=False)

    def _scaled(self, maps: Tensor, before: Tensor, signs: Tensor) -> Tensor:
        """With the mean and the spread of the records held, colour by colour."""
        held = self.held.inputs.double()
        over = (0, 2, 3)
        spread = before.std(over, keepdim=True).clamp_min(1e-12)
        unit = (maps - before.mean(over, keepdim=True)) / spread
        shown = held.mean(over, keepdim=True) + signs[:, None, None] * unit * held.std(
            over, keepdim=True
        )
        return shown.clamp(0, 1)


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
    ) -> EachSent:
        held, features = knowledge.require("looking at what was sent", "shadow", "features")
        shape = held.shape
        wide = features[1] if len(features) == 2 else 1
        if features[:1] != shape or len(features) > 2 or wide not in (1, self.vocabulary):
            raise NotApplicable(
                f"features of shape {features} are no words by themselves: neither one number for each of "
                f"{shape[0]} places nor one for each of {self.vocabulary:,} words",
                ever=False,
            )
        return EachSent(shape, features, f"{features} were expected", self._answer)

    def _answer(self, values: Tensor) -> Answer:
        if values.ndim == 2 or values.shape[2] == 1:
            values = values.flatten(1)
            tokens = values.round().clamp(0, self.vocabulary - 1).long()
            plain = torch.isclose(values, tokens.to(values.dtype))
        else:
            tokens = values.argmax(2)
            one_hot = F.one_hot(tokens, self.vocabulary).to(values.dtype)
            plain = torch.isclose(values, one_hot).all(2)
        return tokens[:, None], plain.double().mean(1)[:, None]
