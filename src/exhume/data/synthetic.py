"""Sentence pairs of a made-up language: quick to learn, for tests and for trying things out."""

from __future__ import annotations

import torch

from exhume.core.contract import ExhumeError, Key
from exhume.data.sentences import TextPairs

__all__ = ["synthetic_pairs"]


def synthetic_pairs(count: int, *, words: int, length: int, key: Key) -> TextPairs:
    """Chains of words, each drawn by the one before it; a translation replaces them word by word.

    A word is followed by some words much more often than by others (Zipf's law, in an order of its own).
    """
    if count < 1 or words < 2 or length < 3:
        raise ExhumeError(f"count, words, length: at least 1, 2, 3: {count}, {words}, {length}")
    order = key.fold("language").generator()
    shares = 1 / torch.arange(1, words + 1).double() ** 1.5
    follow = torch.stack([shares[torch.randperm(words, generator=order)] for _ in range(words + 1)])
    draw = key.fold("sentences").generator()
    lengths = torch.randint(3, length + 1, (count,), generator=draw)
    at = torch.full((count,), words)  # the start of a sentence
    chain = []
    for _ in range(length):
        at = torch.multinomial(follow[at], 1, generator=draw)[:, 0]
        chain.append(at)
    rows = torch.stack(chain, 1).tolist()
    sentences = [row[:n] for row, n in zip(rows, lengths.tolist(), strict=True)]
    return TextPairs(
        tuple(" ".join(f"a{word}" for word in sentence) for sentence in sentences),
        tuple(" ".join(f"b{word}" for word in sentence) for sentence in sentences),
        ("aa", "bb"),
    )
