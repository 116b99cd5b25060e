"""A client that has its sentences translated: what it sends, and what the server knows (Ensembler24, A.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import Activations, ExhumeError, Knowledge, Records, Secret
from exhume.models.split.seq2seq import Body, Words

__all__ = ["release_sentences", "translation_knowledge"]

_CUT = "embedding"


@torch.no_grad()
def release_sentences(
    words: Words, private: Records, noise: Tensor | None = None
) -> tuple[Activations, Secret]:
    """What leaves the client for these sentences; noise is (l, e), or (n, l, e) where it is drawn afresh."""
    if not len(private):
        raise ExhumeError("split: the client has no sentence to send")
    return Activations(words.send(private.inputs, noise), _CUT), Secret(private)


@torch.no_grad()
def translation_knowledge(
    words: Words,
    body: Body,
    held: Records,
    answers: Tensor,
    *,
    earlier: Records | None = None,
    noise: Tensor | None = None,
    with_table: bool = False,
) -> Knowledge:
    """The semi-honest server: the body, sentence pairs of its own, what the client has sent before.

    with_table: also the client's embeddings, which gives an upper bound and no attack.
    """
    sent = words.send(held.inputs[:1])
    return Knowledge(
        shadow=held,
        answers=answers,
        features=tuple(sent.shape[1:]),
        seen=None if earlier is None else words.send(earlier.inputs, noise),
        parts={"body0": body, **({"head": words} if with_table else {})},
    )
