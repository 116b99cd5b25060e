"""An embedding table is a substitution cipher: read it like one.

The client's table is secret but fixed. Take the positions away, which everybody knows, and a word sends the
same vector wherever it stands, whoever writes it. The server numbers the vectors it has been sent, and finds
out which number is which word by the statistics of its own text (`decipher`). The body's weights are not
needed, and nothing is trained.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.releases import features_of
from exhume.attacks.split.decipher import by_frequency, decipher
from exhume.attacks.split.sent_vectors import (
    gap_between,
    nearest_of,
    numbered,
    real_ones,
    shifts,
    unplaced,
)
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
from exhume.models.split.seq2seq import PADDING, UNKNOWN, Words, sinusoids

SINUSOIDS, NO_POSITIONS, FOUND = _POSITIONS = ("sinusoids", "none", "found")
"""What a client adds to a word's vector: the public sinusoids, nothing, or a vector of each place."""


@dataclass(frozen=True)
class SubstitutionCipher:
    """Number the vectors that a client has sent, then decipher the numbers.

    Sees: `Activations`, what the client sends for n sentences.
    Assumes: what the client sent before, sentences of the server's own of the same kind, a vector for each
    place that depends on its word alone but for a position that is added. Neither the body nor a
    translation. No query.
    Guarantees: nothing about the truth is used. A vector not seen before is an unknown word. No randomness.
    Reference: ours; Ensembler24 leaves it out.
    """

    rounds: int = 25  # 0: by frequency alone
    tolerance: float = (
        0.5  # vectors closer than this share of their usual length are one word; 0: found out
    )
    positions: str = (
        SINUSOIDS  # what is added to a vector: these, nothing, or something to be found out
    )
    padding: int | None = PADDING  # fills sentences up; it counts as a word unless it sends zeros
    unknown: int = UNKNOWN  # stands for a vector not seen before

    def __post_init__(self) -> None:
        if self.rounds < 0 or not 0 <= self.tolerance < 1:
            raise ExhumeError(f"rounds at least 0 and tolerance in [0, 1) needed: {self}")
        if self.positions not in _POSITIONS:
            raise ExhumeError(
                f"positions: {self.positions!r} is not one of {', '.join(_POSITIONS)}"
            )

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> ReadTable:
        knowledge.require("reading the embeddings as a cipher", "shadow", "seen")
        assert knowledge.shadow is not None
        assert knowledge.seen is not None
        seen = knowledge.seen
        if seen.ndim != 3 or seen.shape[1:2] != knowledge.shadow.shape:
            raise NotApplicable(
                f"features of shape {tuple(seen.shape[1:])} are not one vector for each of "
                f"{knowledge.shadow.shape[0]} places",
                ever=False,
            )
        if not bool((seen != 0).any()):
            raise NotApplicable("nothing but zeros was sent before", ever=False)
        started = time.perf_counter()
        progress("deciphering", 0, 1)
        places, apart = self._placed(seen)
        vectors = unplaced(seen, places)
        symbols, centres = numbered(vectors, real_ones(vectors)[:0], apart)
        silent_places = bool((seen == 0).all(2).any())
        padding = self.padding if silent_places else None
        plain = _from_one(knowledge.shadow.inputs.long().cpu(), padding)
        kinds = (len(centres) + 1, int(plain.max()) + 1)
        if self.rounds:
            words = decipher(symbols.cpu(), plain, kinds, self.rounds)
        else:
            words = by_frequency(symbols.cpu(), plain, kinds)
        progress("deciphering", 1, 1)
        named = torch.where(words > 0, _as_given(words, padding), self.unknown)  # 0: left over
        counts = torch.bincount(symbols.flatten().cpu(), minlength=kinds[0])
        return ReadTable(
            centres,
            named[1:].to(seen.device),
            counts[1:].double().log1p().to(seen.device),
            apart,
            tuple(seen.shape[1:]),
            {"symbols": float(len(centres))},
            Cost(time.perf_counter() - started),
            places,
            self.unknown if self.padding is None else self.padding,
            self.unknown,
        )

    def _placed(self, seen: Tensor) -> tuple[Tensor, float]:
        """(l, e) what is added at every place, and how far apart the vectors of two words are."""
        places = torch.zeros_like(seen[0])
        if self.positions == SINUSOIDS:
            places = _sinusoids_like(seen)
        vectors = unplaced(seen, places)
        if self.tolerance:
            apart = self.tolerance * float(real_ones(vectors).norm(dim=1).median())
        else:
            apart = gap_between(vectors)
        if self.positions == FOUND:
            places = shifts(vectors, apart)
        return places, apart


def _from_one(tokens: Tensor, padding: int | None) -> Tensor:
    """Token numbers from 1, 0 for the padding; those above it stay."""
    if padding is None:
        return tokens + 1
    return torch.where(tokens == padding, 0, tokens + (tokens < padding).long())


def _as_given(words: Tensor, padding: int | None) -> Tensor:
    """The inverse of `_from_one`, for words."""
    if padding is None:
        return words - 1
    return words - (words <= padding).long()


@dataclass(frozen=True)
class KnownTable:
    """Look every vector up in the client's own table: a bound, and no attack.

    Sees: `Activations`, what the client sends for n sentences.
    Assumes: the part named head, the client's embeddings; sinusoids as positions.
    Guarantees: nothing about the truth is used. No randomness.
    Reference: ours.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> ReadTable:
        head = knowledge.parts.get("head")
        if not isinstance(head, Words) or knowledge.features is None:
            raise NotApplicable(
                "looking words up needs the embeddings as the part named head, and the features' shape",
                ever=True,
            )
        with torch.no_grad():
            every = torch.arange(UNKNOWN, head.net.source, device=head.source.weight.device)[
                :, None
            ]
            table = _plain(head.send(every))[:, 0]
        return ReadTable(
            table,
            every[:, 0],
            torch.ones(len(table), dtype=torch.float64, device=table.device),
            float("inf"),
            knowledge.features,
            {},
            Cost(),
            _sinusoids_like(table.new_zeros(1, *knowledge.features)),
        )


@dataclass(frozen=True, eq=False)
class ReadTable:
    """Vectors and the words they stand for."""

    centres: Tensor  # (s, e)
    words: Tensor  # (s,)
    sure: Tensor  # (s,) how well each is known
    apart: float  # farther from all of them than this: an unknown word
    features: tuple[int, ...]
    observed: dict[str, float]
    cost: Cost
    places: Tensor  # (l, e) what is added at every place; not a number: nobody knows
    padding: int = PADDING  # where nothing was sent
    unknown: int = UNKNOWN

    def run(self, releases: Release) -> Reconstruction:
        wanted = f"{self.features} expected"
        values = features_of(releases, self.features[:1], self.features, wanted)
        if isinstance(values, Reconstruction):
            return values
        started = time.perf_counter()
        vectors = unplaced(values, self.places)
        real = (vectors != 0).any(2)
        far, nearest = nearest_of(vectors[real], self.centres)
        device = values.device
        tokens = torch.full(real.shape, self.padding, device=device)
        tokens[real] = torch.where(far <= self.apart, self.words[nearest], self.unknown)
        sure = torch.zeros(real.shape, dtype=torch.float64, device=device)
        sure[real] = torch.where(far <= self.apart, self.sure[nearest], 0.0)
        return Reconstruction(
            candidates=tokens[:, None].to(values.dtype),
            confidence=(sure.sum(1) / real.sum(1).clamp_min(1))[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(self.cost.seconds + time.perf_counter() - started),
            observed=self.observed,
        )


def _plain(features: Tensor) -> Tensor:
    """(n, l, e) without the sinusoids; zeros stay zeros."""
    return unplaced(features, _sinusoids_like(features))


def _sinusoids_like(features: Tensor) -> Tensor:
    """(n, l, e) to (l, e)."""
    _, length, width = features.shape
    return sinusoids(length, width, features.device).to(features.dtype)
