"""Networks of a server that looks back: a shadow of the client's head, and a decoder of its features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from exhume.contract import ExhumeError, Key
from exhume.models.drawing import he_normal

__all__ = ["Decoder", "ShadowHead", "halvings"]


def halvings(shape: tuple[int, ...], features: tuple[int, ...]) -> int:
    """How often the side of an image is halved on its way to the features."""
    if len(shape) != 3 or len(features) != 3:
        raise ExhumeError(
            f"features of shape {features} from records of shape {shape}: images are needed on both sides"
        )
    times = round(math.log2(shape[1] / features[1]))
    if times < 0 or any(s != f << times for s, f in zip(shape[1:], features[1:], strict=True)):
        raise ExhumeError(f"features of {features} do not halve images of {shape}")
    return times


@dataclass(frozen=True)
class ShadowHead:
    """Three convolutions: one in the client's place, two for its noise (Ensembler24)."""

    channels: int = 64
    convolutions: int = 3

    def __post_init__(self) -> None:
        if self.channels < 1 or self.convolutions < 2:
            raise ExhumeError(f"channels at least 1 and convolutions at least 2 needed: {self}")

    def module(self, shape: tuple[int, ...], features: tuple[int, ...], key: Key) -> nn.Module:
        """(n, *shape) to (n, *features); the first convolutions halve the side where that is needed."""
        times = halvings(shape, features)
        inside = [self.channels] * (self.convolutions - 1)

        def plain() -> nn.Module:
            layers: list[nn.Module] = []
            for place, (a, b) in enumerate(pairwise((shape[0], *inside, features[0]))):
                layers.append(nn.Conv2d(a, b, 3, padding=1))
                if place == 0:
                    layers += [nn.BatchNorm2d(b), nn.ReLU(), *[nn.MaxPool2d(2)] * times]
                elif place < self.convolutions - 1:
                    layers.append(nn.ReLU())
            return nn.Sequential(*layers)

        return he_normal(plain, key)


@dataclass(frozen=True)
class Decoder:
    """Convolutions at the features' size, then doublings of the side, to values in [0, 1]."""

    channels: int = 64

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise ExhumeError(f"channels: at least 1 needed, got {self.channels}")

    def module(self, features: tuple[int, ...], shape: tuple[int, ...], key: Key) -> nn.Module:
        """(n, *features) to (n, *shape)."""
        times, wide = halvings(shape, features), self.channels

        def plain() -> nn.Module:
            layers: list[nn.Module] = [
                nn.BatchNorm2d(features[0]),
                nn.Conv2d(features[0], wide, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(wide, wide, 3, padding=1),
                nn.ReLU(),
            ]
            for _ in range(times):
                layers += [nn.ConvTranspose2d(wide, wide, 4, stride=2, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(wide, shape[0], 3, padding=1), nn.Sigmoid()]
            return nn.Sequential(*layers)

        return he_normal(plain, key)
