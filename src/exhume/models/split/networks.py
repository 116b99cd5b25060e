"""Ensembler24's networks, as chains of named stages, so that they can be cut anywhere between them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.drawing import he_normal

_STACKS = (2, 2, 3, 3, 3)  # convolutions between two max-pools of VGG-16
_TIMES = (1, 2, 4, 8, 8)  # their channels, as multiples of the width


@runtime_checkable
class KeyedNetwork(Protocol):
    """A network as a value that builds itself from a key."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...
    def module(self, key: Key) -> nn.Module:
        """A new network; its weights come from the key, the global generator is not touched."""
        ...


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
        _check_sizes(self.input_shape, {"outputs": self.outputs, "width": self.width})

    def module(self, key: Key) -> nn.Sequential:
        return he_normal(self._stages, key)

    def _stages(self) -> nn.Sequential:
        widths = [self.width, self.width, 2 * self.width, 4 * self.width, 8 * self.width]
        first = _convolution(self.input_shape[0], self.width)
        if self.max_pool:
            first.append(nn.MaxPool2d(3, stride=2, padding=1))
        stages: OrderedDict[str, nn.Module] = OrderedDict(conv1=first)
        for index, (inputs, outputs) in enumerate(pairwise(widths), start=1):
            stages[f"block{index}"] = nn.Sequential(
                ResidualBlock(inputs, outputs, 1 if index == 1 else 2),
                ResidualBlock(outputs, outputs, 1),
            )
        return _ended(stages, widths[-1], self.outputs)


@dataclass(frozen=True)
class VGG16:
    """Stages conv1 to conv13 (3x3, batch norm, ReLU; a max-pool ends the last of each stack), pool, fc.

    One dense layer ends it, as usual for small images, instead of three (Ensembler24, Fig. 2).
    """

    input_shape: tuple[int, ...] = (3, 32, 32)
    outputs: int = 10
    width: int = 64

    def __post_init__(self) -> None:
        _check_sizes(self.input_shape, {"outputs": self.outputs, "width": self.width}, side=32)

    def module(self, key: Key) -> nn.Sequential:
        return he_normal(self._stages, key)

    def _stages(self) -> nn.Sequential:
        stages: OrderedDict[str, nn.Module] = OrderedDict()
        channels = self.input_shape[0]
        for stack, times in zip(_STACKS, _TIMES, strict=True):
            for place in range(stack):
                stage = _convolution(channels, times * self.width)
                if place == stack - 1:
                    stage.append(nn.MaxPool2d(2))
                stages[f"conv{len(stages) + 1}"] = stage
                channels = times * self.width
        return _ended(stages, channels, self.outputs)


class ResidualBlock(nn.Module):
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


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


def _ended(stages: OrderedDict[str, nn.Module], channels: int, outputs: int) -> nn.Sequential:
    """The stages with pool and fc behind them."""
    stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages["fc"] = nn.Linear(channels, outputs)
    return nn.Sequential(stages)


def _check_sizes(shape: tuple[int, ...], sizes: dict[str, int], *, side: int = 1) -> None:
    """Refuse what is no image of such a side, and sizes below 1."""
    if len(shape) != 3 or min(shape[1:]) < side:
        raise ExhumeError(
            f"input_shape: {shape} given, channels x height x width needed, a side at least {side}"
        )
    for name, size in sizes.items():
        if size < 1:
            raise ExhumeError(f"{name}: {size} given, at least 1 needed")
