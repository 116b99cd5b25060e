"""Networks of the kind that people federate, at torch's own start."""

from __future__ import annotations

from itertools import pairwise

import torch
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
