"""Sentences from the tokens that each place may have, by what the network makes of the whole.

The span of attention's gradients tells which tokens stand at a place in some record of the batch (and a few
that do not: if s and t share place l, and t is at place m too, then s fits at m). The features of a record
tell which of them belong together. All sentences are tried where they are few; else a search changes one
place at a time, from many starts, then two where that is not enough. Either way the misfit says whether the
sentence is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import torch
from torch import Tensor

from exhume.core.contract import Key

__all__ = ["Assembly"]

_SWEEPS = 12
_FINALISTS = 4  # starts that go on with two places at a time
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
    pairs: int = 10_000_000  # sentences of one sweep up to which two places are changed at a time

    def fit(self, wanted: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """(b, d) features, the surest first, to (b, l) tokens and (b,) relative misfits.

        count: how many records there are; once so many are found the rest is not searched for.
        """
        if math.prod(len(place) for place in self.places) <= self.largest:
            sentences = torch.tensor(list(product(*self.places)))
            apart = torch.cat(
                [self._apart(part, wanted) for part in torch.split(sentences, _CHUNK)]
            )
            misfit, best = apart.min(0)
            return sentences[best], misfit
        tokens = torch.zeros(len(wanted), len(self.places), dtype=torch.int64)
        misfits = torch.ones(len(wanted), dtype=torch.float64)
        kept: dict[int, Tensor] = {}
        for i, one in enumerate(wanted):
            if int((misfits < _EXACT).sum()) >= count:
                return tokens, misfits
            kept[i], misfits[i] = self._search(one, self.key.fold(i))
            tokens[i] = kept[i][0]
        if self._sweep() > self.pairs:
            return tokens, misfits
        pairs = list(combinations(range(len(self.places)), 2))
        for i, here in kept.items():
            if int((misfits < _EXACT).sum()) >= count:
                break
            if float(misfits[i]) >= _EXACT:
                found, misfit = self._descended(here, pairs, wanted[i])
                misfits[i], place = misfit.min(0)
                tokens[i] = found[place]
        return tokens, misfits

    def _apart(self, sentences: Tensor, wanted: Tensor) -> Tensor:
        """(n, b) relative distances."""
        apart: Tensor = torch.cdist(self.features(sentences), wanted)
        share: Tensor = apart / wanted.norm(dim=1).clamp_min(1e-30)
        return share.nan_to_num(nan=math.inf)  # a sentence that a network has no answer to

    def _search(self, wanted: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """One place at a time from many starts: the best few (f, l), best first, and the smallest misfit."""
        generator = key.generator()
        columns = [
            torch.tensor(place)[torch.randint(len(place), (self.starts,), generator=generator)]
            for place in self.places
        ]
        here = torch.stack(columns, 1)  # (starts, l)
        singles = [(place,) for place in range(len(self.places))]
        here, misfit = self._descended(here, singles, wanted)
        return here[misfit.argsort()[:_FINALISTS]], misfit.min()

    def _sweep(self) -> int:
        """Sentences that changing two places at a time, once each, would try."""
        counts = [len(place) for place in self.places]
        return _FINALISTS * (sum(counts) ** 2 - sum(count**2 for count in counts)) // 2

    def _descended(
        self, here: Tensor, moves: Sequence[tuple[int, ...]], wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(n, l) sentences changed at the places of one move after the other, while that helps."""
        misfit = self._apart(here, wanted[None])[:, 0]
        for _ in range(_SWEEPS):
            before = misfit
            for places in moves:
                here, misfit = self._best_of(here, places, wanted)
                if float(misfit.min()) < _EXACT:
                    return here, misfit
            if bool((misfit >= before).all()):
                break
        return here, misfit

    def _best_of(
        self, here: Tensor, places: tuple[int, ...], wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Every sentence with the options at these places that fit best; what it has is among them."""
        options = torch.tensor(list(product(*(self.places[place] for place in places))))
        tried = here[:, None].repeat(1, len(options), 1)
        tried[:, :, list(places)] = options
        apart = self._apart(tried.flatten(0, 1), wanted[None])[:, 0].reshape(tried.shape[:2])
        misfit, best = apart.min(1)
        return tried[torch.arange(len(here)), best], misfit
