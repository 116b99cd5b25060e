"""Sentences as records of token numbers, labelled by how they end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from exhume.contract import ExhumeError, Records

__all__ = ["PADDING", "UNKNOWN", "Corpus", "corpus_of"]

PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"\w+(?:'\w+)?|[.,!?;:]")
_ENDS = ("statement", "question", "exclamation")


@dataclass(frozen=True, eq=False)
class Corpus:
    records: Records  # (n, l) token numbers as floats
    words: tuple[str, ...]  # by token number

    def text(self, tokens: Sequence[int]) -> str:
        """A sentence to be read; padding is left out."""
        return " ".join(self.words[token] for token in tokens if token != PADDING)


def corpus_of(sentences: Sequence[str], *, length: int, vocabulary: int) -> Corpus:
    """Different sentences of at most `length` words and marks; the rarest of these are unknown."""
    if length < 1 or vocabulary < 3:
        raise ExhumeError(
            f"length, vocabulary: at least 1 and 3 are needed, got {length} and {vocabulary}"
        )
    split = [_WORD.findall(sentence.lower()) for sentence in dict.fromkeys(sentences)]
    kept = [words for words in split if 0 < len(words) <= length]
    if not kept:
        raise ExhumeError(f"sentences: none of {len(sentences)} has 1 to {length} words")
    counts = Counter(word for words in kept for word in words)
    known = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - 2]
    number = {word: place for place, word in enumerate(known, start=2)}
    rows = torch.full((len(kept), length), float(PADDING))
    for row, words in zip(rows, kept, strict=True):
        row[: len(words)] = torch.tensor([float(number.get(word, UNKNOWN)) for word in words])
    labels = torch.tensor([{"?": 1, "!": 2}.get(words[-1], 0) for words in kept])
    return Corpus(Records(rows, labels, _ENDS), ("<padding>", "<unknown>", *known))
