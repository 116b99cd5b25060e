"""Sentences from the tokens that each place may have, by what the network makes of the whole.

The span of attention's gradients tells which tokens stand at a place in some record of the batch (and a few
that do not: if s and t share place l, and t is at place m too, then s fits at m). The features of a record
tell which of them belong together. All sentences are tried where they are few; else a search changes one
place at a time, from many starts. Either way the misfit says whether the sentence is the right one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from exhume.contract import Key

__all__ = ["Assembly"]

_SWEEPS = 12
_EXACT = 1e-4  # misfit at which a sentence is found: fp32 leaves 1e-6
_CHUNK = 4096  # sentences whose features are computed at once


@dataclass(frozen=True, eq=False)
class Assembly:
    """places: the tokens each of l places may have, none empty; features: (n, l) tokens to (n, d)."""

    places: list[list[int]]
    features: Callable[[Tensor], Tensor]
    largest: int  # sentences to try them all
    starts: int  # of the search, otherwise
    key: Key

    def fit(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """(b, d) features to (b, l) tokens and (b,) relative misfits."""
        if math.prod(len(place) for place in self.places) <= self.largest:
            sentences = torch.tensor(list(product(*self.places)))
            apart = torch.cat(
                [self._apart(part, wanted) for part in torch.split(sentences, _CHUNK)]
            )
            misfit, best = apart.min(0)
            return sentences[best], misfit
        found = [self._search(one, self.key.fold(i)) for i, one in enumerate(wanted)]
        return torch.stack([f[0] for f in found]), torch.stack([f[1] for f in found])

    def _apart(self, sentences: Tensor, wanted: Tensor) -> Tensor:
        """(n, b) relative distances."""
        apart: Tensor = torch.cdist(self.features(sentences), wanted)
        share: Tensor = apart / wanted.norm(dim=1).clamp_min(1e-30)
        return share

    def _search(self, wanted: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        generator = key.generator()
        columns = [
            torch.tensor(place)[torch.randint(len(place), (self.starts,), generator=generator)]
            for place in self.places
        ]
        here = torch.stack(columns, 1)  # (starts, l)
        misfit = self._apart(here, wanted[None])[:, 0]
        for _ in range(_SWEEPS):
            before = misfit
            for place, options in enumerate(self.places):
                here, misfit = self._best_of(here, place, torch.tensor(options), wanted)
            if float(misfit.min()) < _EXACT or bool((misfit >= before).all()):
                break
        best = int(misfit.argmin())
        return here[best], misfit[best]

    def _best_of(
        self, here: Tensor, place: int, options: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Every start with the option at one place that fits best; what it has is among them."""
        tried = here[:, None].repeat(1, len(options), 1)
        tried[:, :, place] = options
        apart = self._apart(tried.flatten(0, 1), wanted[None])[:, 0].reshape(tried.shape[:2])
        misfit, best = apart.min(1)
        return tried[torch.arange(len(here)), best], misfit
