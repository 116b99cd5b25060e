"""Clients of a split network, of images or of sentences: what they send, and what the server knows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from exhume.core.contract import Activations, ExhumeError, Key, Knowledge, Records, Secret
from exhume.models.split.channel import FreshNoise
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.models.split.seq2seq import TranslatorBody, TranslatorWords


def release_features(
    pipeline: Pipeline, private: Records, key: Key | None = None
) -> tuple[Activations, Secret]:
    """What leaves the client for these records. key: of fresh noise, where there is some."""
    if not len(private):
        raise ExhumeError("split: the client has no record to send")
    return Activations(pipeline.released(private.inputs, key), pipeline.cut), Secret(private)


def server_knowledge(
    pipeline: Pipeline,
    held: Records,
    *,
    earlier: Records | None = None,
    with_head: bool = False,
    key: Key | None = None,
) -> Knowledge:
    """The semi-honest server of Ensembler24: its bodies, records like the client's, the features' shape.

    earlier: inputs the client has sent before; the server has kept their features and knows no more of them.
    with_head: also the client's head with its fixed noise, which gives an upper bound and no attack.
    key: of fresh noise on what was sent before. How large that noise is, is no secret: the part "fresh".
    """
    parts: dict[str, nn.Module] = {f"body{i}": body for i, body in enumerate(pipeline.bodies)}
    if with_head:
        parts["head"] = true_head(pipeline.client)
    if pipeline.client.sigma:
        parts["fresh"] = FreshNoise(pipeline.client.sigma)
    shape = tuple(pipeline.released(held.inputs[:1]).shape[1:])
    seen = None if earlier is None else pipeline.released(earlier.inputs, key)
    return Knowledge(shadow=held, features=shape, parts=parts, seen=seen)


def queried_knowledge(pipeline: Pipeline, asked: Records) -> Knowledge:
    """A server that may ask: records of its own, and what the client sends for them."""
    answers = pipeline.released(asked.inputs)
    return Knowledge(shadow=asked, answers=answers, features=tuple(answers.shape[1:]))


def true_head(client: SplitClient) -> nn.Module:
    """Head and fixed noise as one module."""
    return _Noisy(client).eval()


class _Noisy(nn.Module):
    def __init__(self, client: SplitClient) -> None:
        super().__init__()
        self.head = client.head
        self.register_buffer("noise", client.noise)

    def forward(self, inputs: Tensor) -> Tensor:
        sent: Tensor = self.head(inputs) + self.noise
        return sent


# A client that has its sentences translated (Ensembler24, A.1)


_CUT = "embedding"


@torch.no_grad()
def release_sentences(
    words: TranslatorWords, private: Records, noise: Tensor | None = None
) -> tuple[Activations, Secret]:
    """What leaves the client for these sentences; noise is (l, e), or (n, l, e) where it is drawn afresh."""
    if not len(private):
        raise ExhumeError("split: the client has no sentence to send")
    return Activations(words.send(private.inputs, noise), _CUT), Secret(private)


@torch.no_grad()
def translation_knowledge(
    words: TranslatorWords,
    body: TranslatorBody,
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
