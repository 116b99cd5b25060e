"""Training a translator on sentence pairs, and translating with it, word by word."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Store, silent
from exhume.models.split.seq2seq import END, PADDING, START, Body, Words
from exhume.store.shards import digest
from exhume.train.single import Schedule, train_module

__all__ = ["train_translator", "translate", "word_accuracy"]

_SMOOTH = 0.1  # label smoothing
_AT_ONCE = 250  # sentences of one forward pass


def train_translator(
    words: Words,
    body: Body,
    source: Tensor,
    target: Tensor,
    schedule: Schedule,
    *,
    frozen: bool = False,
    key: Key,
    store: Store,
    progress: Progress = silent,
    stage: str = "training the translator",
) -> None:
    """Lower the cross-entropy of the next word, in place. Both end in eval mode, without gradients.

    source: (n, l), target: (n, m), the latter from START to END. frozen: the body stays as it is.
    """
    if len(source) != len(target) or not len(source):
        raise ExhumeError(f"pairs: {len(source)} sentences and {len(target)} translations given")
    body.requires_grad_(not frozen)
    whole = nn.ModuleDict({"words": words} if frozen else {"words": words, "body": body})

    def loss(rows: Tensor, _: torch.Generator) -> Tensor:
        logits = _next_words(words, body, source[rows], target[rows])
        return F.cross_entropy(
            logits.transpose(1, 2),
            target[rows, 1:].long(),
            ignore_index=PADDING,
            label_smoothing=_SMOOTH,
        )

    given = [digest(source), digest(target)]
    if frozen:
        given += [digest(tensor) for tensor in body.state_dict().values()]
    train_module(
        whole,
        loss,
        len(source),
        schedule,
        inputs=tuple(given),
        key=key,
        store=store,
        progress=progress,
        stage=stage,
    )
    body.requires_grad_(False).eval()


@torch.no_grad()
def translate(
    words: Words, body: Body, source: Tensor, longest: int, noise: Tensor | None = None
) -> Tensor:
    """(n, l) to (n, longest): the likeliest next word each time; END and padding after the last.

    noise: (l, e) or (n, l, e), added to what the client sends.
    """
    sent = torch.split(words.send(source, noise), _AT_ONCE)
    return torch.cat([_greedy(words, body, part, longest) for part in sent])


def _greedy(words: Words, body: Body, sent: Tensor, longest: int) -> Tensor:
    memory, real = body.encode(sent), (sent != 0).any(2)
    begun = torch.full((len(sent), 1), START, device=sent.device)
    over = torch.zeros(len(sent), dtype=torch.bool, device=sent.device)
    for _ in range(longest):
        answer = body.decode(memory, real, words.begin(begun))
        following = words.name(answer[:, -1]).argmax(1).masked_fill(over, PADDING)
        over |= following == END
        begun = torch.cat([begun, following[:, None]], 1)
    return begun[:, 1:]


@torch.no_grad()
def word_accuracy(words: Words, body: Body, source: Tensor, target: Tensor) -> float:
    """Share of the words of translations that are named right, given all before them."""
    right, count = 0, 0
    for x, y in zip(torch.split(source, _AT_ONCE), torch.split(target, _AT_ONCE), strict=True):
        wanted = y[:, 1:].long()
        real = wanted != PADDING
        named = _next_words(words, body, x, y).argmax(2)
        right += int((named == wanted)[real].sum())
        count += int(real.sum())
    return right / count


def _next_words(words: Words, body: Body, source: Tensor, target: Tensor) -> Tensor:
    """(n, m - 1, v) logits, each given the words before it."""
    answer = body(words.send(source), words.begin(target[:, :-1]))
    logits: Tensor = words.name(answer)
    return logits
