"""A small network that corrects a drawn record: what it adds is zero before training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.reconstructors import drawn


@dataclass(frozen=True)
class Corrector:
    """For images (c, h, w) convolutions at full and at half the side; otherwise one hidden layer."""

    channels: tuple[int, int] = (12, 24)  # at full and at half the side
    hidden: int = 256  # of the fully connected form

    def __post_init__(self) -> None:
        if min(*self.channels, self.hidden) < 1:
            raise ExhumeError(f"{self}: sizes must be at least 1")

    def build(self, classes: int, shape: tuple[int, ...], key: Key) -> nn.Module:
        """(n, q + classes) records and one-hot labels, flat, to (n, *shape) better records."""

        def plain() -> nn.Module:
            if len(shape) == 3:
                return _Pictures(shape, classes, *self.channels)
            return _Vectors(shape, classes, self.hidden)

        network = drawn(plain, key)
        last = network.get_submodule("last")
        assert isinstance(last, nn.Linear | nn.Conv2d)
        nn.init.zeros_(last.weight)
        return network


class _Vectors(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int) -> None:
        super().__init__()
        self.shape, self.size = shape, math.prod(shape)
        self.first = nn.Linear(self.size, hidden)
        self.label = nn.Linear(classes, hidden, bias=False)
        self.last = nn.Linear(hidden, self.size)

    def forward(self, features: Tensor) -> Tensor:
        guess, onehot = features[:, : self.size], features[:, self.size :]
        added: Tensor = self.last(F.gelu(self.first(guess) + self.label(onehot)))
        return (guess + added).reshape(-1, *self.shape)


class _Pictures(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.shape, self.size = shape, math.prod(shape)
        self.first = nn.Conv2d(shape[0], narrow, 3, padding=1)
        self.down = nn.Conv2d(narrow, wide, 4, stride=2, padding=1)
        self.middle = nn.Conv2d(wide, wide, 5, padding=2)
        self.label = nn.Linear(classes, wide, bias=False)
        self.up = nn.ConvTranspose2d(wide, narrow, 4, stride=2, padding=1)
        self.last = nn.Conv2d(narrow, shape[0], 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        guess, onehot = features[:, : self.size], features[:, self.size :]
        image = guess.reshape(-1, *self.shape)
        _, height, width = self.shape
        even = F.pad(image, (0, width % 2, 0, height % 2), mode="replicate")
        fine = F.gelu(self.first(even))
        coarse = self.middle(F.gelu(self.down(fine))) + self.label(onehot)[:, :, None, None]
        added = self.last(F.gelu(fine + self.up(F.gelu(coarse))))
        corrected: Tensor = image + added[:, :, :height, :width]
        return torch.reshape(corrected, (-1, *self.shape))
