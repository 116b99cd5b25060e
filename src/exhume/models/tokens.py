"""Classifiers of token sequences: an embedding, a way of pooling it, two fully connected layers.

- flatten: the embeddings side by side
- mean: their mean; the order of the tokens does not matter
- attention: layer norm of embeddings and positions, one head of self-attention, then the mean
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.contract import ExhumeError, Key, Layout
from exhume.models.activations import activation
from exhume.models.mlp import MLP

__all__ = ["TokenNet"]

POOLS = ("flatten", "mean", "attention")
_PUBLIC = Key.from_seed(0).fold("public embedding")  # what everybody has downloaded alike


@dataclass(frozen=True)
class TokenNet:
    """Records are (length,) token numbers, kept as floats like any record.

    frozen: the embedding is public and not trained, so that it has no gradient. Positions never have one.
    """

    vocabulary: int
    length: int
    width: int = 32  # of an embedding
    hidden: int = 64
    outputs: int = 3
    pool: str = "flatten"
    frozen: bool = False
    activation: str = "relu"

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise ExhumeError(f"pool: {self.pool!r} is not one of {', '.join(POOLS)}")
        sizes = (self.vocabulary, self.length, self.width, self.hidden, self.outputs)
        if min(sizes) < 1:
            raise ExhumeError(
                f"vocabulary, length, width, hidden, outputs: at least 1, got {sizes}"
            )
        activation(self.activation)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def head(self) -> MLP:
        """The fully connected layers; their parameters are the last of all."""
        inputs = self.length * self.width if self.pool == "flatten" else self.width
        return MLP((inputs,), (self.hidden,), self.outputs, self.activation)

    @property
    def layout(self) -> Layout:
        names, shapes = self.head.layout.names, self.head.layout.shapes
        square = (self.width, self.width)
        if self.pool == "attention":
            names = ("query", "key", "value", *names)
            shapes = (square, square, square, *shapes)
        if not self.frozen:
            names, shapes = ("embed", *names), ((self.vocabulary, self.width), *shapes)
        return Layout(names, shapes)

    def table(self, parameters: Tensor) -> Tensor:
        """(v, e) the embedding at these parameters (p,)."""
        if self.frozen:
            return self.public_table().to(parameters.dtype)
        return self.layout.split(parameters)["embed"]

    def public_table(self) -> Tensor:
        shape = (self.vocabulary, self.width)
        return torch.randn(shape, generator=_PUBLIC.fold("tokens").generator())

    def positions(self) -> Tensor:
        """(l, e) added to the embeddings where there is attention."""
        shape = (self.length, self.width)
        return torch.randn(shape, generator=_PUBLIC.fold("positions").generator())

    def placed(self, vectors: Tensor) -> Tensor:
        """(..., l, e) embeddings to what attention sees of them at each place."""
        return F.layer_norm(vectors + self.positions().to(vectors.dtype), (self.width,))

    def initial(self, key: Key) -> Tensor:
        """(p,) float32: N(0, 1) embeddings, N(0, 1/fan_in) weights, zero biases."""
        generator = key.fold("tokens").generator()
        flat = []
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if name == "embed":
                flat.append(torch.randn(shape, generator=generator).flatten())
            elif name in ("query", "key", "value"):
                scale = math.sqrt(self.width)
                flat.append(torch.randn(shape, generator=generator).flatten() / scale)
        return torch.cat([*flat, self.head.initial(key)])

    def build(self) -> nn.Module:
        return _TokenModule(self)

    def __str__(self) -> str:
        kind = "public" if self.frozen else "trained"
        return (
            f"{self.length} tokens of {self.vocabulary}, {kind} embedding of {self.width}, "
            f"{self.pool}, {self.head}"
        )


class _TokenModule(nn.Module):
    embed: Tensor
    query: Tensor
    key: Tensor
    value: Tensor

    def __init__(self, net: TokenNet) -> None:
        super().__init__()
        self.net = net
        if net.frozen:
            self.register_buffer("embed", net.public_table())
        else:
            self.embed = nn.Parameter(torch.zeros(net.vocabulary, net.width))
        if net.pool == "attention":
            for name in ("query", "key", "value"):
                self.register_parameter(name, nn.Parameter(torch.zeros(net.width, net.width)))
        self.fc1 = nn.Linear(net.head.sizes[0], net.hidden)
        self.fc2 = nn.Linear(net.hidden, net.outputs)
        self.act = activation(net.activation).module()

    def features(self, tokens: Tensor) -> Tensor:
        """(b, l) to (b, d): what enters the fully connected layers."""
        vectors = F.embedding(tokens.long(), self.embed.to(self.fc1.weight.dtype))
        if self.net.pool == "flatten":
            return vectors.flatten(1)
        if self.net.pool == "attention":
            vectors = self._mixed(self.net.placed(vectors))
        return vectors.mean(1)

    def _mixed(self, vectors: Tensor) -> Tensor:
        asked, offered = vectors @ self.query.T, vectors @ self.key.T
        scores = asked @ offered.transpose(1, 2) / math.sqrt(self.net.width)
        return vectors + torch.softmax(scores, 2) @ (vectors @ self.value.T)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(self.features(tokens))))
        return out
