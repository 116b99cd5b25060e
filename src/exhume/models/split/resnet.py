"""ResNet-18 as a chain of named stages, so that it can be cut anywhere between them (Ensembler24)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.drawing import he_normal

__all__ = ["Basic", "ResNet18"]


@dataclass(frozen=True)
class ResNet18:
    """Stages conv1 (with batch norm, ReLU and, if wanted, max-pool), block1 to block4, pool, fc.

    The first convolution is 3x3 with stride 1, as usual for small images. Ensembler24's features after
    conv1: 64x16x16 on CIFAR-10 (with max-pool), 64x32x32 on CIFAR-100 (without).
    """

    input_shape: tuple[int, ...] = (3, 32, 32)
    outputs: int = 10
    width: int = 64  # channels of the first stage; the later ones have 1, 2, 4 and 8 times as many
    max_pool: bool = True

    def __post_init__(self) -> None:
        if len(self.input_shape) != 3:
            raise ExhumeError(
                f"input_shape: {self.input_shape} given, channels x height x width needed"
            )
        if min(self.outputs, self.width) < 1:
            raise ExhumeError(f"width and outputs must be at least 1: {self}")

    def module(self, key: Key) -> nn.Sequential:
        """A new network; its weights come from the key, the global generator is not touched."""

        def plain() -> nn.Sequential:
            widths = [self.width, self.width, 2 * self.width, 4 * self.width, 8 * self.width]
            stages: OrderedDict[str, nn.Module] = OrderedDict()
            first: list[nn.Module] = [
                nn.Conv2d(self.input_shape[0], self.width, 3, padding=1, bias=False),
                nn.BatchNorm2d(self.width),
                nn.ReLU(),
            ]
            if self.max_pool:
                first.append(nn.MaxPool2d(3, stride=2, padding=1))
            stages["conv1"] = nn.Sequential(*first)
            for index in range(1, 5):
                stride = 1 if index == 1 else 2
                stages[f"block{index}"] = nn.Sequential(
                    Basic(widths[index - 1], widths[index], stride),
                    Basic(widths[index], widths[index], 1),
                )
            stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            stages["fc"] = nn.Linear(widths[-1], self.outputs)
            return nn.Sequential(stages)

        return he_normal(plain, key)


class Basic(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inside = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inside)) + self.shortcut(x))
