"""Networks of the kind that people federate, at torch's own start; language models at GPT-2's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.models.split.networks import ResidualBlock


def fully_connected(*widths: int) -> nn.Module:
    """Widths from inputs to outputs, ReLU between."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convnet(inputs: int, side: int, first: int = 32, second: int = 64) -> nn.Module:
    """Two convolutions with max pooling, two fully connected layers."""
    return nn.Sequential(
        *(nn.Conv2d(inputs, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(second * (side // 4) ** 2, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84)),
        *(nn.ReLU(), nn.Linear(84, 10)),
    )


class ResNet(nn.Sequential):
    """ResNet-18 in its form for small images: a first convolution of 3x3, no max pooling."""

    def __init__(self, width: int = 64, inputs: int = 3, outputs: int = 10) -> None:
        stem = (nn.Conv2d(inputs, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks: list[nn.Module] = []
        last = width
        for stage in range(4):
            wide = width * 2**stage
            blocks += [ResidualBlock(last, wide, 2 if stage else 1), ResidualBlock(wide, wide, 1)]
            last = wide
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, outputs))
        super().__init__(*stem, *blocks, *head)


class VisionTransformer(nn.Module):
    """Patches, a class token, trained vectors of places, blocks with norms first."""

    def __init__(
        self,
        *,
        width: int = 192,
        blocks: int = 6,
        heads: int = 3,
        patch: int = 4,
        side: int = 32,
        inputs: int = 3,
        outputs: int = 10,
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.patches = nn.Conv2d(inputs, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.places
        given: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return given


class _Block(nn.Module):
    def __init__(self, kind: str, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        norm: Any = nn.RMSNorm if kind == "llama" else nn.LayerNorm
        bias = kind != "llama"
        self.first, self.second = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)
        self.gate = nn.Linear(width, 4 * width, bias) if kind == "llama" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "bert":  # norms behind
            x = self.first(x + self._mixed(x))
            normed: Tensor = self.second(x + self._fed_forward(x))
            return normed
        x = x + self._mixed(self.first(x))
        return x + self._fed_forward(self.second(x))

    def _mixed(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, 2)
        )
        if self.kind == "llama":
            q, k = _rotated(q), _rotated(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.kind != "bert")
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return out

    def _fed_forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        out: Tensor = self.down(inner)
        return out


def _rotated(x: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.shape[3] // 2
    angles = torch.arange(x.shape[2])[:, None] / 10_000 ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], 3)


class LanguageTransformer(nn.Module):
    """The shape of gpt, bert or llama, with GPT-2's start.

    GPT-2 and BERT tie their outputs to the embedding; Llama does not, and rotates instead of adding places.
    """

    def __init__(
        self, kind: str, *, vocabulary: int, length: int, width: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        self.kind = kind
        self.token = nn.Embedding(vocabulary, width)
        self.place = None if kind == "llama" else nn.Embedding(length + 1, width)
        self.blocks = nn.ModuleList(_Block(kind, width, heads) for _ in range(layers))
        self.norm: nn.Module = nn.RMSNorm(width) if kind == "llama" else nn.LayerNorm(width)
        self.outputs = nn.Linear(width, vocabulary, bias=False)
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=0.02)
        if kind != "llama":
            self.outputs.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        if self.place is not None:
            x = x + self.place(torch.arange(tokens.shape[1]))
        if self.kind == "bert":
            x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.outputs(x if self.kind == "bert" else self.norm(x))
        return logits
