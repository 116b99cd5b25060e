"""VGG-16 with batch norm as a chain of named stages (Ensembler24, Fig. 2)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.drawing import he_normal

__all__ = ["VGG16"]

_STACKS = (2, 2, 3, 3, 3)  # convolutions between two max-pools
_TIMES = (1, 2, 4, 8, 8)  # their channels, as multiples of the width


@dataclass(frozen=True)
class VGG16:
    """Stages conv1 to conv13 (3x3, batch norm, ReLU; a max-pool ends the last of each stack), pool, fc.

    One dense layer ends it, as usual for small images, instead of three.
    """

    input_shape: tuple[int, ...] = (3, 32, 32)
    outputs: int = 10
    width: int = 64

    def __post_init__(self) -> None:
        if len(self.input_shape) != 3 or min(self.input_shape[1:]) < 32:
            raise ExhumeError(
                f"input_shape: {self.input_shape} given, images of at least 32x32 needed"
            )
        if min(self.outputs, self.width) < 1:
            raise ExhumeError(f"width and outputs must be at least 1: {self}")

    def module(self, key: Key) -> nn.Sequential:
        """A new network; its weights come from the key, the global generator is not touched."""

        def plain() -> nn.Sequential:
            stages: OrderedDict[str, nn.Module] = OrderedDict()
            channels = self.input_shape[0]
            for stack, times in zip(_STACKS, _TIMES, strict=True):
                for place in range(stack):
                    wide = times * self.width
                    layers: list[nn.Module] = [
                        nn.Conv2d(channels, wide, 3, padding=1, bias=False),
                        nn.BatchNorm2d(wide),
                        nn.ReLU(),
                    ]
                    if place == stack - 1:
                        layers.append(nn.MaxPool2d(2))
                    stages[f"conv{len(stages) + 1}"] = nn.Sequential(*layers)
                    channels = wide
            stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            stages["fc"] = nn.Linear(channels, self.outputs)
            return nn.Sequential(stages)

        return he_normal(plain, key)
