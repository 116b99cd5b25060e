"""Networks of a server that looks back: a shadow of the client's head, and a decoder of its features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from exhume.core.contract import ExhumeError, Key, NotApplicable
from exhume.models.drawing import he_normal
from exhume.models.split.channel import UnitLength
from exhume.models.split.cut import cut
from exhume.models.split.networks import KeyedNetwork

_SEED = 4  # side of the map that numbers are made from or grow from, about


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
        """(n, *shape) to (n, *features); the first convolutions halve the side where that is needed.

        Features without height and width are numbers of length at most 1, from a dense layer.
        """
        if len(features) == 1:
            return he_normal(lambda: self._to_numbers(shape, features[0]), key)
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

    def _to_numbers(self, shape: tuple[int, ...], numbers: int) -> nn.Module:
        layers: list[nn.Module] = []
        sides = shape[1:]
        for a, b in pairwise((shape[0], *[self.channels] * self.convolutions)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
            if min(sides) > _SEED:
                layers.append(nn.MaxPool2d(2))
                sides = tuple(side // 2 for side in sides)
        size = self.channels * math.prod(sides)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, numbers), UnitLength())


@dataclass(frozen=True)
class OwnForm:
    """The client's own form with other weights, for a server that knows the architecture."""

    network: KeyedNetwork
    first: str  # last layer of the head
    second: str  # last layer of the body

    def module(self, shape: tuple[int, ...], features: tuple[int, ...], key: Key) -> nn.Module:
        """(n, *shape) to (n, *features), drawn from the key.

        A network that comes with its weights cannot be drawn anew, and must not be handed to an attacker.
        """
        parts = cut(self.network.module(key), self.first, self.second)
        others = cut(self.network.module(key.fold("another")), self.first, self.second)
        pairs = zip(parts.head.parameters(), others.head.parameters(), strict=True)
        same = [bool(torch.equal(a, b)) for a, b in pairs if a.ndim > 1]
        if same and all(same):
            raise NotApplicable(
                "the network has the same weights whatever the seed, so that no other head of its form "
                "can be drawn; give a factory that does not load them",
                ever=True,
            )
        made = parts.feature_shape(shape)
        if made != features:
            raise ExhumeError(
                f"form: {self.network} cut after {self.first!r} sends {made}, the client sends {features}"
            )
        return parts.head


@dataclass(frozen=True)
class Decoder:
    """Convolutions at the features' size, then doublings of the side, to values in [0, 1]."""

    channels: int = 64

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise ExhumeError(f"channels: at least 1 needed, got {self.channels}")

    def module(self, features: tuple[int, ...], shape: tuple[int, ...], key: Key) -> nn.Module:
        """(n, *features) to (n, *shape); numbers begin as a small map that a dense layer makes of them."""
        wide, numbers = self.channels, len(features) == 1
        times = _doublings(shape) if numbers else halvings(shape, features)

        def plain() -> nn.Module:
            layers: list[nn.Module] = [nn.BatchNorm2d(features[0])]
            if numbers:
                seed = (wide, shape[1] >> times, shape[2] >> times)
                dense = nn.Linear(features[0], math.prod(seed))
                layers = [nn.BatchNorm1d(features[0]), dense, nn.ReLU(), nn.Unflatten(1, seed)]
            layers += [
                nn.Conv2d(wide if numbers else features[0], wide, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(wide, wide, 3, padding=1),
                nn.ReLU(),
            ]
            for _ in range(times):
                layers += [nn.ConvTranspose2d(wide, wide, 4, stride=2, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(wide, shape[0], 3, padding=1), nn.Sigmoid()]
            return nn.Sequential(*layers)

        return he_normal(plain, key)


def _doublings(shape: tuple[int, ...]) -> int:
    """How often the side is doubled on the way from a small map to an image."""
    if len(shape) != 3:
        raise ExhumeError(f"records of shape {shape}: only images can be decoded")
    times = 0
    while all(side % (2 << times) == 0 and side >> (times + 1) >= _SEED for side in shape[1:]):
        times += 1
    return times
