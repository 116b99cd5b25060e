"""What came back of texts: scored where there are texts to compare with, with the words for the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from exhume.auditing.updates.lines import Answer, Line
from exhume.contract import Key, Reconstruction, Records
from exhume.models.own.text import TextModel
from exhume.score.texts import score_texts, score_words
from exhume.score.updates import UpdateScores
from exhume.score.verdict import Verdict
from exhume.victims.updates import keep_secret

__all__ = ["is_of_texts", "scored_texts", "told_words", "with_words"]


def is_of_texts(answers: Sequence[Answer]) -> bool:
    return isinstance(answers[0].case.architecture, TextModel)


def scored_texts(
    line: Line,
    ran: Sequence[Answer],
    private: Mapping[str, Records],
    others: Records | None,
    key: Key,
) -> UpdateScores:
    """Each client's texts against everything found in any of its updates."""
    pairs = [
        (keep_secret(records), _pooled(ran, client, records.shape if line.whole else (1,)))
        for client, records in private.items()
    ]
    padding = _net(ran).padding
    if line.whole:
        return score_texts(pairs, others, key, padding=padding, ordered=_ordered(ran))
    return score_words(pairs, others, key, padding=padding)


def told_words(ran: Sequence[Answer]) -> Verdict:
    """Without texts to compare with. A row that is not zero was used: that needs no further proof."""
    counts = [int(torch.isfinite(answer.found.confidence[0]).sum()) for answer in ran]
    some = (
        f"{counts[0]} words" if len(counts) == 1 else f"{min(counts)} to {max(counts)} words each"
    )
    return Verdict(
        "leaks",
        f"The update leaks words: it lists which {some} the client's texts are made of.",
        "Only the rows of these words have changed. In which text each stands is not told by this.",
    )


def with_words(evidence: dict[str, Tensor], ran: Sequence[Answer], line: Line) -> dict[str, Tensor]:
    """The evidence, and what its token numbers mean: for the page."""
    vocabulary = ran[0].case.vocabulary
    names = vocabulary.words if vocabulary is not None else ()
    kept = [evidence[n].long().flatten() for n in _TOKENS if n in evidence]
    used = torch.unique(torch.cat(kept)).tolist() if kept else []
    told = {
        "padding": _net(ran).padding,
        "ordered": line.whole and _ordered(ran),
        "words": {str(n): names[n] for n in used if 0 <= n < len(names)},
    }
    text = bytearray(json.dumps(told).encode())
    return evidence | {"lexicon": torch.frombuffer(text, dtype=torch.uint8)}


_TOKENS = ("targets", "reconstructions", "nearest", "listed")


def _net(ran: Sequence[Answer]) -> TextModel:
    net = ran[0].case.architecture
    assert isinstance(net, TextModel)  # asked before
    return net


def _ordered(ran: Sequence[Answer]) -> bool:
    return all(answer.found.observed.get("ordered", 1.0) > 0 for answer in ran)


def _pooled(ran: Sequence[Answer], client: str, shape: tuple[int, ...]) -> Reconstruction:
    own = [answer.found for answer in ran if answer.case.client == client]
    tokens = [f.candidates[0][torch.isfinite(f.confidence[0])].long() for f in own]
    whole = torch.unique(torch.cat([torch.zeros(0, *shape).long(), *tokens]), dim=0)[None]
    return Reconstruction(whole, torch.zeros(whole.shape[:2]), ran[0].found.status)
