"""Sentence pairs as token numbers, for a translator."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records
from exhume.data import TextPairs
from exhume.models.split.seq2seq import END, PADDING, SPECIAL, START, UNKNOWN

__all__ = ["PairCorpus", "pair_corpus"]

_WORD = re.compile(r"\w+(?:'\w+)?|[.,!?;:]")


@dataclass(frozen=True, eq=False)
class PairCorpus:
    """n pairs of short sentences, all different on the first side, in random order."""

    source: Records  # (n, l) token numbers as floats
    target: Tensor  # (n, l + 2) from START to END
    source_words: tuple[str, ...]  # by token number
    target_words: tuple[str, ...]
    references: tuple[str, ...]  # the translations in all their words
    languages: tuple[str, str]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, part: slice) -> PairCorpus:
        return replace(
            self,
            source=self.source[part],
            target=self.target[part],
            references=self.references[part],
        )

    def deal(self, *sizes: int) -> list[PairCorpus]:
        """Consecutive parts of these sizes; no pair is in two of them."""
        if sum(sizes) > len(self):
            raise ExhumeError(
                f"pairs: {sum(sizes)} needed ({' + '.join(map(str, sizes))}), {len(self)} available"
            )
        ends = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
        return [self[start:stop] for start, stop in pairwise(ends)]


def pair_corpus(pairs: TextPairs, *, length: int, vocabulary: int, key: Key) -> PairCorpus:
    """Pairs of at most `length` words and marks on either side; the rarest words are unknown."""
    if length < 1 or vocabulary <= len(SPECIAL):
        raise ExhumeError(
            f"length, vocabulary: at least 1 and {len(SPECIAL) + 1} are needed, "
            f"got {length} and {vocabulary}"
        )
    different = {
        tuple(_split(a)): _split(b) for a, b in zip(pairs.source, pairs.target, strict=True)
    }
    kept = [(list(a), b) for a, b in different.items() if 0 < len(a) <= length >= len(b) > 0]
    if not kept:
        raise ExhumeError(f"pairs: none of {len(pairs)} has 1 to {length} words on both sides")
    order = torch.randperm(len(kept), generator=key.generator()).tolist()
    source, target = [kept[i][0] for i in order], [kept[i][1] for i in order]
    source_words, target_words = (_frequent(side, vocabulary) for side in (source, target))
    inputs = _numbered(source, source_words, length).float()
    ended = _numbered(
        [[SPECIAL[START], *words, SPECIAL[END]] for words in target], target_words, length + 2
    )
    return PairCorpus(
        Records(inputs, torch.zeros(len(inputs), dtype=torch.long), ("sentence",)),
        ended.float(),
        source_words,
        target_words,
        tuple(" ".join(words) for words in target),
        pairs.languages,
    )


def _split(sentence: str) -> list[str]:
    return _WORD.findall(sentence.lower())


def _frequent(sentences: list[list[str]], vocabulary: int) -> tuple[str, ...]:
    counts = Counter(word for words in sentences for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (*SPECIAL, *ranked[: vocabulary - len(SPECIAL)])


def _numbered(sentences: list[list[str]], words: tuple[str, ...], length: int) -> Tensor:
    number = {word: place for place, word in enumerate(words)}
    rows = torch.full((len(sentences), length), PADDING)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = torch.tensor([number.get(word, UNKNOWN) for word in sentence])
    return rows
