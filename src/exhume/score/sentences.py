"""Score recovered sentences: words in place, whole sentences, BLEU.

Padding does not count: how long a sentence is can be seen. BLEU is sacrebleu's, of a whole corpus, up to four
words, on the words as they are (tokenize="none"), as a share of one hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Reconstruction, Secret
from exhume.models.split.seq2seq import PADDING, UNKNOWN, read_out

__all__ = ["SentenceScores", "bleu", "score_sentences"]


@dataclass(frozen=True, eq=False)
class SentenceScores:
    right: Tensor  # (n,) share of a sentence's places with the right word
    known: float  # the same over all places whose word is not the unknown one
    bleu: float

    def metrics(self, prefix: str) -> dict[str, float]:
        return {
            f"{prefix}.token_accuracy": float(self.right.mean()),
            f"{prefix}.known_words": self.known,
            f"{prefix}.exact": float((self.right == 1).double().mean()),
            f"{prefix}.bleu": self.bleu,
        }


def score_sentences(
    secret: Secret, found: Reconstruction | Tensor, words: Sequence[str]
) -> SentenceScores:
    """The first candidate of each release, or given tokens (n, l), against the sentence that was sent."""
    truth = secret.open().inputs
    tokens = found if isinstance(found, Tensor) else found.candidates[:, 0]
    if tokens.shape != truth.shape:
        raise ExhumeError(
            f"sentences: {tuple(tokens.shape)} tokens found, {tuple(truth.shape)} were sent"
        )
    real = truth != PADDING
    right = ((tokens == truth) & real).double().sum(1) / real.sum(1)
    named = real & (truth != UNKNOWN)
    known = float((tokens == truth)[named].double().mean()) if bool(named.any()) else 0.0
    seen = torch.where(real, tokens, torch.full_like(tokens, PADDING))
    return SentenceScores(right, known, bleu(read_out(seen, words), read_out(truth, words)))


def bleu(found: Sequence[str], wanted: Sequence[str]) -> float:
    """BLEU of sentences whose words are set apart by blanks."""
    if find_spec("sacrebleu") is None:
        raise ExhumeError("BLEU needs sacrebleu: pip install 'exhume[text]'")
    corpus_bleu = import_module("sacrebleu").corpus_bleu
    return float(corpus_bleu(list(found), [list(wanted)], tokenize="none", force=True).score)
