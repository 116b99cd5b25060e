"""A small translation transformer, cut where a client would cut it (Ensembler24, A.1).

The client keeps what knows words: the embeddings of both languages and the layer that names the next word.
The server computes the body: encoder and decoder. What leaves the client for a sentence x_1 … x_l is

    f_i = sqrt(e) · E[x_i] + p_i,     p the sinusoids of Vaswani et al. 2017, which have no weights,

and zeros at the places of padding: the length of a sentence is visible.

Shapes: n sentences, l places, v words, e width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key

PADDING, UNKNOWN, START, END = range(4)
_M = TypeVar("_M", bound=nn.Module)
SPECIAL = ("<padding>", "<unknown>", "<start>", "<end>")


@dataclass(frozen=True)
class Translator:
    """Sizes of the network. The paper's example: width 512, 8 heads, 3 + 3 layers, 512 hidden."""

    source: int  # words of the first language, the special ones included
    target: int
    width: int = 128
    heads: int = 4
    layers: int = 2  # of the encoder, and of the decoder
    hidden: int = 256

    def __post_init__(self) -> None:
        sizes = (self.width, self.heads, self.layers, self.hidden)
        if min(self.source, self.target) <= len(SPECIAL) or min(sizes) < 1:
            raise ExhumeError(
                f"source and target must exceed {len(SPECIAL)}, all other sizes be at least 1: {self}"
            )
        if self.width % (2 * self.heads):
            raise ExhumeError(
                f"width: {self.width} is not a multiple of twice the {self.heads} heads"
            )

    def words(self, key: Key) -> TranslatorWords:
        """A client's part; its weights come from the key, the global generator is not touched."""
        return _drawn(TranslatorWords(self), key.fold("words"))

    def body(self, key: Key) -> TranslatorBody:
        """A server's part."""
        return _drawn(TranslatorBody(self), key.fold("body"))


class TranslatorWords(nn.Module):
    """All that knows words: the client's part, and what an attacker makes in its place."""

    def __init__(self, net: Translator) -> None:
        super().__init__()
        self.net = net
        with torch.device("meta"):
            self.source = nn.Embedding(net.source, net.width)
            self.target = nn.Embedding(net.target, net.width)
            self.name = nn.Linear(net.width, net.target)

    def forward(self, sentences: Tensor) -> Tensor:
        return self.send(sentences)

    def send(self, sentences: Tensor, noise: Tensor | None = None) -> Tensor:
        """(n, l) tokens of the first language to features (n, l, e), with noise (l, e) or (n, l, e)."""
        return _placed(self.source, sentences, noise)

    def begin(self, begun: Tensor) -> Tensor:
        """(n, l) the beginnings of translations to features (n, l, e)."""
        return _placed(self.target, begun)


class TranslatorBody(nn.Module):
    """Encoder and decoder. Places of padding are those whose features are all zero."""

    def __init__(self, net: Translator) -> None:
        super().__init__()
        with torch.device("meta"):
            self.encoder = nn.ModuleList(_Layer(net, crossed=False) for _ in range(net.layers))
            self.decoder = nn.ModuleList(_Layer(net, crossed=True) for _ in range(net.layers))
            self.read, self.written = nn.LayerNorm(net.width), nn.LayerNorm(net.width)

    def encode(self, source: Tensor) -> Tensor:
        """(n, l, e) to (n, l, e)."""
        real = _real(source)[:, None, None]
        for layer in self.encoder:
            source = layer(source, real)
        out: Tensor = self.read(source)
        return out

    def decode(self, memory: Tensor, real: Tensor, begun: Tensor) -> Tensor:
        """What was read (n, l, e), which of its places are real (n, l), and a beginning (n, m, e)."""
        m = begun.shape[1]
        earlier = torch.ones(m, m, dtype=torch.bool, device=begun.device).tril()
        for layer in self.decoder:
            begun = layer(begun, earlier, memory, real[:, None, None])
        out: Tensor = self.written(begun)
        return out

    def forward(self, source: Tensor, begun: Tensor) -> Tensor:
        return self.decode(self.encode(source), _real(source), begun)


class _Attention(nn.Module):
    def __init__(self, net: Translator) -> None:
        super().__init__()
        self.heads = net.heads
        self.asked = nn.Linear(net.width, net.width)
        self.offered = nn.Linear(net.width, 2 * net.width)
        self.out = nn.Linear(net.width, net.width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        asked = self._heads(self.asked(x))
        keys, values = (self._heads(part) for part in self.offered(memory).chunk(2, 2))
        mixed = F.scaled_dot_product_attention(asked, keys, values, attn_mask=mask)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        n, places, _ = x.shape
        return x.reshape(n, places, self.heads, -1).transpose(1, 2)


class _Layer(nn.Module):
    """Attention to itself, to what was read where there is such, and two dense layers; norms come first."""

    def __init__(self, net: Translator, *, crossed: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(net.width) for _ in range(3 if crossed else 2))
        self.own = _Attention(net)
        self.across = _Attention(net) if crossed else None
        self.dense = nn.Sequential(
            nn.Linear(net.width, net.hidden), nn.ReLU(), nn.Linear(net.hidden, net.width)
        )

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor:
        inside = self.norms[0](x)
        x = x + self.own(inside, inside, mask)
        if self.across is not None:
            assert memory is not None
            assert real is not None
            x = x + self.across(self.norms[1](x), memory, real)
        out: Tensor = x + self.dense(self.norms[-1](x))
        return out


def sinusoids(places: int, width: int, device: torch.device | None = None) -> Tensor:
    """(l, e): sin and cos of i / 10000^(2k/e), side by side."""
    rates = torch.exp(-math.log(10_000) * torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(places, device=device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)


def read_out(tokens: Tensor, words: Sequence[str]) -> list[str]:
    """(n, l) to sentences; they stop at END, and padding and START are left out."""
    sentences = []
    for row in tokens.long().tolist():
        whole = row[: row.index(END)] if END in row else row
        sentences.append(" ".join(words[t] for t in whole if t not in (PADDING, START)))
    return sentences


def _placed(table: nn.Embedding, tokens: Tensor, noise: Tensor | None = None) -> Tensor:
    tokens, width = tokens.long(), table.embedding_dim
    vectors = math.sqrt(width) * table(tokens) + sinusoids(tokens.shape[1], width, tokens.device)
    if noise is not None:
        vectors = vectors + noise.to(vectors.device)
    placed: Tensor = vectors * (tokens != PADDING)[:, :, None]
    return placed


def _real(features: Tensor) -> Tensor:
    """(n, l, e) to (n, l)."""
    return (features != 0).any(2)


def _drawn(module: _M, key: Key) -> _M:
    """Matrices from N(0, 1 / columns), so that embeddings times sqrt(e) are N(0, 1); norms the identity."""
    module.to_empty(device="cpu")
    generator = key.fold("weights").generator()
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.LayerNorm):
                layer.reset_parameters()
            elif isinstance(layer, nn.Linear | nn.Embedding):
                columns = layer.weight.shape[1]
                layer.weight.normal_(0, 1 / math.sqrt(columns), generator=generator)
                if isinstance(layer, nn.Linear):
                    layer.bias.zero_()
    return module
