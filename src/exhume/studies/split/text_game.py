"""A client, a server and their sentences: one attack after another on the same translator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.contract import Attack, Key, Prepared, Progress, Reconstruction, Store
from exhume.models.split.seq2seq import PADDING, Body, Words, read_out
from exhume.score.sentences import SentenceScores, bleu, score_sentences
from exhume.studies.study import labelled
from exhume.train.translation import translate
from exhume.victims.pairs import PairCorpus
from exhume.victims.translation import release_sentences, translation_knowledge

__all__ = ["Game", "Met", "Noises"]


@dataclass(frozen=True, eq=False)
class Noises:
    """What the client adds to its private sentences and to those it sent before."""

    private: Tensor | None = None
    earlier: Tensor | None = None

    @staticmethod
    def fixed(sigma: float, shape: tuple[int, int], key: Key) -> Noises:
        """One map (l, e) for all sentences, as Ensembler24 has it."""
        one = sigma * torch.randn(shape, generator=key.fold("fixed").generator())
        return Noises(one, one)

    @staticmethod
    def fresh(sigma: float, shape: tuple[int, int], counts: tuple[int, int], key: Key) -> Noises:
        """Drawn anew for every sentence."""
        generator = key.fold("fresh").generator()
        drawn = [sigma * torch.randn(n, *shape, generator=generator) for n in counts]
        return Noises(*drawn)


_QUIET = Noises()


@dataclass(frozen=True, eq=False)
class Met:
    """One attack: what it is, what it found, how good that is."""

    prepared: Prepared
    found: Reconstruction
    scores: SentenceScores


@dataclass(frozen=True, eq=False)
class Game:
    words: Words  # the client's
    body: Body
    held: PairCorpus  # the server's own pairs
    earlier: PairCorpus  # what the client sent before: the server knows the features only
    private: PairCorpus
    key: Key
    store: Store
    progress: Progress

    def meet(
        self,
        attack: Attack,
        name: str,
        *,
        noises: Noises = _QUIET,
        seen: int | None = None,
        with_table: bool = False,
    ) -> Met:
        """seen: only so many of the sentences sent before."""
        release, secret = release_sentences(self.words, self.private.source, noises.private)
        knowledge = translation_knowledge(
            self.words,
            self.body,
            self.held.source,
            self.held.target,
            earlier=self.earlier.source[:seen],
            noise=noises.earlier,
            with_table=with_table,
        )
        prepared = attack.prepare(
            knowledge,
            key=self.key.fold("attack", name),
            store=self.store,
            progress=labelled(self.progress, name),
        )
        found = prepared.run(release)
        return Met(prepared, found, score_sentences(secret, found, self.private.source_words))

    def scored(self, tokens: Tensor) -> SentenceScores:
        """Of given sentences (n, l) in place of what an attack finds."""
        _, secret = release_sentences(self.words, self.private.source)
        return score_sentences(secret, tokens, self.private.source_words)

    def usual(self) -> Tensor:
        """(n, l) the null: at each place the word most frequent there in the server's sentences."""
        own = self.held.source.inputs
        columns = (column[column != PADDING] for column in own.T)
        usual = [float(c.mode().values) if len(c) else float(PADDING) for c in columns]
        return torch.tensor(usual).expand_as(self.private.source.inputs)

    def translated(self, words: Words, noise: Tensor | None = None) -> tuple[list[str], float]:
        """The private sentences through the body, and their BLEU."""
        longest = self.private.target.shape[1]
        tokens = translate(words, self.body, self.private.source.inputs, longest, noise)
        text = read_out(tokens, self.private.target_words)
        return text, bleu(text, self.private.references)
