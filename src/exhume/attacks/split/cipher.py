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
from exhume.contract import (
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

__all__ = ["KnownTable", "ReadTable", "SubstitutionCipher", "numbered"]

_AT_ONCE = 4096


@dataclass(frozen=True)
class SubstitutionCipher:
    """Number the vectors that a client has sent, then decipher the numbers.

    Sees: `Activations`, what the client sends for n sentences.
    Assumes: what the client sent before, sentences of the server's own of the same kind, sinusoids as
    positions. Neither the body nor a translation. No query.
    Guarantees: nothing about the truth is used. A vector not seen before is an unknown word. No randomness.
    Reference: ours; Ensembler24 leaves it out.
    """

    rounds: int = 25  # 0: by frequency alone
    tolerance: float = 0.5  # vectors closer than this share of their usual length are one word

    def __post_init__(self) -> None:
        if self.rounds < 0 or not 0 < self.tolerance < 1:
            raise ExhumeError(f"rounds at least 0 and tolerance in (0, 1) needed: {self}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> ReadTable:
        knowledge.require("reading the embeddings as a cipher", "shadow", "seen")
        assert knowledge.shadow is not None
        assert knowledge.seen is not None
        started = time.perf_counter()
        progress("deciphering", 0, 1)
        vectors = _unplaced(knowledge.seen)
        apart = self.tolerance * float(_real(vectors).norm(dim=1).median())
        symbols, centres = numbered(vectors, _real(vectors)[:0], apart)
        plain = knowledge.shadow.inputs.long()
        kinds = (len(centres) + 1, int(plain.max()) + 1)
        if self.rounds:
            words = decipher(symbols, plain, kinds, self.rounds)
        else:
            words = by_frequency(symbols, plain, kinds)
        progress("deciphering", 1, 1)
        words[1:][words[1:] == 0] = UNKNOWN  # more symbols than words
        counts = torch.bincount(symbols.flatten(), minlength=kinds[0])
        return ReadTable(
            centres,
            words[1:],
            counts[1:].double().log1p(),
            apart,
            tuple(knowledge.seen.shape[1:]),
            {"symbols": float(len(centres))},
            Cost(time.perf_counter() - started),
        )


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
            every = torch.arange(UNKNOWN, head.net.source)[:, None]
            table = _unplaced(head.send(every))[:, 0]
        return ReadTable(
            table,
            every[:, 0],
            torch.ones(len(table), dtype=torch.float64),
            float("inf"),
            knowledge.features,
            {},
            Cost(),
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

    def run(self, releases: Release) -> Reconstruction:
        wanted = f"{self.features} expected"
        values = features_of(releases, self.features[:1], self.features, wanted)
        if isinstance(values, Reconstruction):
            return values
        started = time.perf_counter()
        vectors = _unplaced(values)
        real = (vectors != 0).any(2)
        far, nearest = _nearest(vectors[real], self.centres)
        tokens = torch.full(real.shape, PADDING)
        tokens[real] = torch.where(far <= self.apart, self.words[nearest], UNKNOWN)
        sure = torch.zeros(real.shape, dtype=torch.float64)
        sure[real] = torch.where(far <= self.apart, self.sure[nearest], 0.0)
        return Reconstruction(
            candidates=tokens[:, None].to(values.dtype),
            confidence=(sure.sum(1) / real.sum(1).clamp_min(1))[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(self.cost.seconds + time.perf_counter() - started),
            observed=self.observed,
        )


def numbered(vectors: Tensor, centres: Tensor, apart: float) -> tuple[Tensor, Tensor]:
    """(n, l, e), zeros where there is nothing, to numbers (n, l) and what they stand for, (s, e).

    A vector has the number of the nearest centre within `apart`, else it becomes one. Numbers are from 1.
    """
    real = (vectors != 0).any(2)
    for part in torch.split(vectors[real], _AT_ONCE):
        new = part[_nearest(part, centres)[0] > apart]
        while len(new):
            centres = torch.cat([centres, new[:1]])
            new = new[(new - new[0]).norm(dim=1) > apart]
    numbers = torch.zeros(real.shape, dtype=torch.long)
    numbers[real] = 1 + _nearest(vectors[real], centres)[1]
    return numbers, centres


def _nearest(vectors: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) distance to the nearest centre and which it is; infinite where there is none."""
    if not len(centres):
        nowhere = torch.zeros(len(vectors), dtype=torch.long)
        return torch.full((len(vectors),), float("inf"), dtype=vectors.dtype), nowhere
    parts = [torch.cdist(part, centres).min(1) for part in torch.split(vectors, _AT_ONCE)]
    return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])


def _unplaced(features: Tensor) -> Tensor:
    """(n, l, e) without the positions; zeros stay zeros."""
    real = (features != 0).any(2, keepdim=True)
    return (features - sinusoids(*features.shape[1:]).to(features.dtype)) * real


def _real(vectors: Tensor) -> Tensor:
    """(n, l, e) to the (m, e) that are there."""
    return vectors[(vectors != 0).any(2)]
