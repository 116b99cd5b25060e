"""Texts in a split network: their words, and what the head's architecture does with places."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from exhume.attacks.split.cipher import FOUND, NO_POSITIONS
from exhume.core.contract import ExhumeError, Key, NotApplicable, Records
from exhume.models.own_texts import drawn_tokens, embedding_of
from exhume.settings import SplitSettings

__all__ = ["TextForm", "positions_of", "text_form"]

_PROBE = Key.from_seed(0).fold("places")
_WORDS = 4  # of a probe
_SAME = 1e-4  # relative


@dataclass(frozen=True)
class TextForm:
    """What the numbers of the texts stand for."""

    vocabulary: int  # rows of the embedding
    padding: int | None
    words: tuple[str, ...]  # by number; empty: not known


def text_form(module: nn.Module, records: Records, settings: SplitSettings) -> TextForm | None:
    """None for records that are no texts; raises `ExhumeError` where texts and network do not fit."""
    if records.vocabulary is None:
        return None
    if not records.vocabulary.given:
        raise ExhumeError(
            "vocabulary: say with --vocabulary how the words of the texts are numbered, as the network has "
            "its own numbers"
        )
    found = embedding_of(module, records.shape[0])
    if found is None:
        raise ExhumeError(
            "model: it takes no token sequences: no nn.Embedding of it is given its inputs"
        )
    _, rows, usual = found
    if int(records.inputs.max()) >= rows:
        odd = int((records.inputs >= rows).any(1).nonzero()[0, 0])
        raise ExhumeError(
            f"data: record {odd} has the token {int(records.inputs[odd].max())}, the model's embedding has "
            f"{rows} rows"
        )
    padding = settings.padding if settings.padding >= 0 else records.vocabulary.padding
    return TextForm(rows, usual if padding is None else padding, records.vocabulary.words)


@torch.no_grad()
def positions_of(head: nn.Module, length: int, vocabulary: int) -> str:
    """What is added to a word's vector at its place: nothing, or something that has to be found out.

    head: of the client's form. Its weights are drawn anew, here: nothing but the architecture is looked at.
    Raises `NotApplicable` where a vector is not its word's but for such a sum.
    """
    draw = _PROBE.fold("weights").generator()
    for weight in head.parameters():
        weight.copy_(torch.randn(weight.shape, generator=draw))
    head.eval()
    text = drawn_tokens((1, length), vocabulary, None, _PROBE).expand(length, -1)
    changed = torch.where(torch.eye(length, dtype=torch.bool), (text + 1) % vocabulary, text)
    apart = (head(changed) - head(text)).norm(dim=2).fill_diagonal_(0)  # but for the changed word
    if float(apart.norm()) > _SAME * float(head(text).norm()):
        raise NotApplicable(
            "what is sent for a word depends on the words around it, so that it is no cipher",
            ever=False,
        )
    words = torch.arange(min(vocabulary, _WORDS))[:, None].expand(-1, length)
    vectors = head(words)  # (w, l, e)
    moved = vectors - vectors[:, :1]
    if float(moved.norm()) <= _SAME * float(vectors.norm()):
        return NO_POSITIONS
    if not _alike(moved, moved[:1].expand_as(moved)):
        raise NotApplicable(
            "a word's position is not only added to its vector, so that a word has no vector of its own",
            ever=False,
        )
    return FOUND


def _alike(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _SAME * float(one.norm())
