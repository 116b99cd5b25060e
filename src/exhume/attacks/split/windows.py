"""The first layer of an image network, and the small windows in which its work can be looked at.

A first layer is a convolution with bias, a ReLU and perhaps a max-pool of 3 with stride 2: batch norm in
use is part of the weights and the bias. A window of `side` x `side` features depends on a small square of
pixels, so that thousands of windows cost less than a few images. Windows do not touch the border, where
the padding shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import NotApplicable
from exhume.models.split.inverter import halvings

_LARGEST = 3


class FirstLayer(nn.Module):
    """max-pool(ReLU(weight * x + bias)) + noise, as the client computes it."""

    def __init__(self, weight: Tensor, bias: Tensor, noise: Tensor, *, pooled: bool) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("noise", noise)
        self.pooled = pooled

    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias, noise = (self.get_buffer(n) for n in ("weight", "bias", "noise"))
        inside = F.relu(F.conv2d(inputs, weight, bias, padding=weight.shape[-1] // 2))
        return (F.max_pool2d(inside, 3, 2, 1) if self.pooled else inside) + noise


@dataclass(frozen=True)
class Windows:
    """Where windows lie in images and in the features that a first layer makes of them."""

    kernel: int
    pooled: bool
    side: int  # features of a window, in each direction

    @classmethod
    def between(cls, shape: tuple[int, ...], features: tuple[int, ...], kernel: int) -> Windows:
        """Those of a layer from images of one shape to features of the other; 3 x 3 features if they fit."""
        if len(features) != 3:
            raise NotApplicable(
                f"features of {features} are no maps, so have no windows", ever=True
            )
        times = halvings(shape, features)
        if times > 1:
            raise NotApplicable(
                f"features of {features} halve images of {shape} {times} times; a first layer does so "
                "at most once",
                ever=True,
            )
        for side in range(_LARGEST, 0, -1):
            made = cls(kernel, bool(times), side)
            if min(made._places(size) for size in features[1:]) > 0:
                return made
        raise NotApplicable(f"features of {features} are too small for windows", ever=False)

    @property
    def _stride(self) -> int:
        return 2 if self.pooled else 1

    @property
    def _before(self) -> int:
        """Pixels of a window above its first feature's own, which is `_stride` times its index."""
        return self.kernel // 2 + (1 if self.pooled else 0)

    @property
    def pixels(self) -> int:
        return self._stride * (self.side - 1) + 1 + 2 * self._before

    @property
    def _first(self) -> int:
        return -(-self._before // self._stride)

    def _places(self, size: int) -> int:
        """How many windows fit in one direction of the features."""
        last = (self._stride * size - self.pixels + self._before) // self._stride
        return last - self._first + 1

    def layer(self, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """(m, c, pixels, pixels) to (m, f, side, side)."""
        inside = F.relu(F.conv2d(inputs, weight, bias))
        return F.max_pool2d(inside, 3, 2) if self.pooled else inside

    def of_images(self, images: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """(count, c, pixels, pixels): windows of images (n, c, h, w) drawn at random."""
        sizes = [size // self._stride for size in images.shape[2:]]
        which, down, across = self._draw(len(images), sizes, count, generator)
        down, across = (self._stride * at - self._before for at in (down, across))
        return _windows(images, which, down, across, self.pixels)

    def of_features(self, features: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """(count, f, side, side): windows of features (n, f, h, w) drawn at random."""
        sizes = list(features.shape[2:])
        which, down, across = self._draw(len(features), sizes, count, generator)
        return _windows(features, which, down, across, self.side)

    def _draw(
        self, maps: int, sizes: list[int], count: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        which = torch.randint(maps, (count,), generator=generator)
        down, across = (
            self._first + torch.randint(self._places(size), (count,), generator=generator)
            for size in sizes
        )
        return which, down, across


def _windows(maps: Tensor, which: Tensor, down: Tensor, across: Tensor, side: int) -> Tensor:
    which, down, across = (at.to(maps.device) for at in (which, down, across))
    inside = torch.arange(side, device=maps.device)
    rows = (down[:, None] + inside)[:, :, None]
    columns = (across[:, None] + inside)[:, None, :]
    return maps[which[:, None, None], :, rows, columns].permute(0, 3, 1, 2)
