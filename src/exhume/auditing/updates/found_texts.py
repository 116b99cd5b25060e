"""What came back of texts: scored where there are texts to compare with, with the words for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from exhume.auditing.updates.attacks import Answer, UpdateAttack
from exhume.core.contract import Key, Reconstruction, Records, Shard
from exhume.core.results import Verdict
from exhume.models.own_texts import TextModel
from exhume.score.batches import UpdateScores
from exhume.score.lineup import Alike
from exhume.score.texts import alike_lists, alike_texts, score_texts, score_words
from exhume.victims import keep_secret

__all__ = [
    "is_of_texts",
    "listed_words",
    "pooled_texts",
    "scored_texts",
    "text_measure",
    "with_words",
]


def is_of_texts(answers: Sequence[Answer]) -> bool:
    return isinstance(answers[0].case.architecture, TextModel)


def scored_texts(
    attack: UpdateAttack,
    ran: Sequence[Answer],
    private: Mapping[str, Records],
    others: Records | None,
    key: Key,
) -> UpdateScores:
    """Each client's texts against everything found in any of its updates."""
    pairs = [
        (keep_secret(records), pooled_texts(ran, client, records.shape if attack.whole else (1,)))
        for client, records in private.items()
    ]
    padding = _net(ran).padding
    if attack.whole:
        return score_texts(pairs, others, key, padding=padding, ordered=_ordered(ran))
    return score_words(pairs, others, key, padding=padding)


def text_measure(attack: UpdateAttack, ran: Sequence[Answer]) -> tuple[int | None, Alike]:
    """Padding, and how alike a text is to what came back."""
    padding = _net(ran).padding
    if attack.whole:
        return padding, alike_texts(padding, ordered=_ordered(ran))
    return padding, alike_lists(padding)


def listed_words(ran: Sequence[Answer]) -> Verdict:
    """Without texts to compare with. A row that is not zero was used: that needs no further proof."""
    counts = [len(answer.found.found()) for answer in ran]
    some = (
        f"{counts[0]} words" if len(counts) == 1 else f"{min(counts)} to {max(counts)} words each"
    )
    return Verdict(
        "leaks",
        f"The update leaks words: it lists which {some} the client's texts are made of.",
        "Only the rows of these words have changed. In which text each stands is not told by this.",
    )


def with_words(evidence: dict[str, Tensor], ran: Sequence[Answer], attack: UpdateAttack) -> Shard:
    """The evidence, and what its token numbers mean: for the page."""
    vocabulary = ran[0].case.vocabulary
    names = vocabulary.words if vocabulary is not None else ()
    kept = [evidence[n].long().flatten() for n in _TOKENS if n in evidence]
    used = torch.unique(torch.cat(kept)).tolist() if kept else []
    lexicon = {
        "padding": _net(ran).padding,
        "ordered": attack.whole and _ordered(ran),
        "words": {str(n): names[n] for n in used if 0 <= n < len(names)},
    }
    return Shard(evidence, {"lexicon": lexicon})


_TOKENS = ("targets", "reconstructions", "nearest", "listed")


def _net(ran: Sequence[Answer]) -> TextModel:
    net = ran[0].case.architecture
    assert isinstance(net, TextModel)  # asked before
    return net


def _ordered(ran: Sequence[Answer]) -> bool:
    return all(answer.found.observed.get("ordered", 1.0) > 0 for answer in ran)


def pooled_texts(ran: Sequence[Answer], client: str, shape: tuple[int, ...]) -> Reconstruction:
    own = [answer.found for answer in ran if answer.case.client == client]
    tokens = [f.found().long() for f in own]
    whole = torch.unique(torch.cat([torch.zeros(0, *shape).long(), *tokens]), dim=0)[None]
    return Reconstruction(whole, torch.zeros(whole.shape[:2]), ran[0].found.status)
