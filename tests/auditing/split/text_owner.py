"""A small owner of texts: networks that keep their embedding to themselves, and a made-up language."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from exhume.core.contract import Key

VOCABULARY, LENGTH, WIDTH, CLASSES = 42, 8, 16, 2
PADDING = 0


class Mean(nn.Module):
    """Over the places that are not all zero."""

    def forward(self, x):
        there = (x != 0).any(2, keepdim=True).to(x.dtype)
        return (x * there).sum(1) / there.sum(1).clamp_min(1)


class Placed(nn.Module):
    """A table of words and a table of places, added; places are numbered in the forward."""

    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens):
        return self.word(tokens) + self.place(torch.arange(tokens.shape[1]))


class Net(nn.Module):
    def __init__(self, embed, norm=None):
        super().__init__()
        self.embed = embed
        self.norm = norm or nn.Identity()
        self.mixed = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, dropout=0.0)
        self.pool = Mean()
        self.hidden = nn.Linear(WIDTH, 16)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, tokens):
        x = self.mixed(self.norm(self.embed(tokens)))
        return self.out(torch.relu(self.hidden(self.pool(x))))


def plain():
    return Net(nn.Embedding(VOCABULARY, WIDTH, padding_idx=PADDING))


def placed():
    return Net(Placed())


def normed():
    return Net(Placed(), nn.LayerNorm(WIDTH))


def one_hot():
    """What is sent is the word itself."""
    embed = nn.Embedding(VOCABULARY, VOCABULARY)
    with torch.no_grad():
        embed.weight.copy_(torch.eye(VOCABULARY))
    return nn.Sequential(embed, Mean(), nn.Linear(VOCABULARY, 8), nn.Linear(8, CLASSES))


def masked():
    """Its mask is made of the tokens, and would have to be sent, too."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.hidden = nn.Linear(WIDTH, 8)
            self.out = nn.Linear(8, CLASSES)

        def forward(self, tokens):
            x = self.embed(tokens) * (tokens != 0)[:, :, None]
            return self.out(self.hidden(x.mean(1)))

    return Masked()


def writer():
    return nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, 4), nn.Linear(4, VOCABULARY))


@dataclass(frozen=True)
class Corpus:
    tokens: torch.Tensor  # (n, l)
    labels: torch.Tensor


def corpus(count: int, key: Key) -> Corpus:
    """Chains of words, each drawn by the one before; a class has its own words to begin with."""
    words = VOCABULARY - 2
    language = key.fold("language").generator()
    shares = 1 / torch.arange(1, words + 1).double() ** 1.5
    follow = torch.stack([shares[torch.randperm(words, generator=language)] for _ in range(words)])
    draw = key.fold("texts").generator()
    labels = torch.randint(CLASSES, (count,), generator=draw)
    begin = torch.stack([shares, shares.flip(0)])
    at = torch.multinomial(begin[labels], 1, generator=draw)[:, 0]
    chain = [at]
    for _ in range(LENGTH - 1):
        at = torch.multinomial(follow[at], 1, generator=draw)[:, 0]
        chain.append(at)
    tokens = 2 + torch.stack(chain, 1)
    lengths = torch.randint(5, LENGTH + 1, (count, 1), generator=draw)
    tokens[torch.arange(LENGTH) >= lengths] = PADDING
    return Corpus(tokens, labels)


def trained(made: nn.Module, texts: Corpus, epochs: int = 3) -> nn.Module:
    optimiser = torch.optim.Adam(made.parameters(), 1e-2)
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(texts.tokens), generator=order), 64):
            loss = nn.functional.cross_entropy(made(texts.tokens[rows]), texts.labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return made.eval()
