"""A network for clients that can do little: strided convolutions first, most of the work behind them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.drawing import he_normal
from exhume.models.split.resnet import Basic

__all__ = ["ThinClient"]


@dataclass(frozen=True)
class ThinClient:
    """Stages conv1, conv2, … (3x3, each halves the side), wide (a residual block), pool and fc.

    A client that keeps the first stages computes a small share of the multiply-adds: wide has most of them.
    """

    input_shape: tuple[int, ...] = (3, 32, 32)
    outputs: int = 10
    channels: tuple[int, ...] = (16, 32, 64)  # of the strided convolutions
    wide: int = 136

    def __post_init__(self) -> None:
        if len(self.input_shape) != 3:
            raise ExhumeError(
                f"input_shape: {self.input_shape} given, channels x height x width needed"
            )
        if not self.channels or min(self.outputs, self.wide, *self.channels) < 1:
            raise ExhumeError(f"channels, wide and outputs must be at least 1: {self}")

    def module(self, key: Key) -> nn.Sequential:
        """A new network; its weights come from the key, the global generator is not touched."""

        def plain() -> nn.Sequential:
            stages: OrderedDict[str, nn.Module] = OrderedDict()
            for one, next_one in pairwise((self.input_shape[0], *self.channels)):
                stages[f"conv{len(stages) + 1}"] = _convolution(one, next_one, 2)
            first = _convolution(self.channels[-1], self.wide, 1)
            stages["wide"] = nn.Sequential(first, Basic(self.wide, self.wide, 1))
            stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            stages["fc"] = nn.Linear(self.wide, self.outputs)
            return nn.Sequential(stages)

        return he_normal(plain, key)


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Module:
    layer = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())
