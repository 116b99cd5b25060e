"""First layers, several at once, whose features on some images are distributed as given ones are.

Windows of both are compared by the sliced Wasserstein distance, lowered by Adam over the weights in
coordinates in which patches of pixels are white: without these the flat directions hide the steep ones.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.split.windows import Windows
from exhume.core.contract import Key, Progress

_PATCHES = 50_000  # from which the whitening is taken
_FAINT = 0.05  # a channel that varies less than this share of all counts for less
_JUDGED = 2  # times the windows and directions of a step, to compare what it led to


@dataclass(frozen=True)
class Pass:
    """A descent: steps, windows and directions of a step, rate at the start (it falls as a cosine)."""

    steps: int
    windows: int
    directions: int = 64
    rate: float = 0.05


class LayerFit:
    """s layers at once; of each the coordinates (f, d) of its weights in white patches and biases (f,)."""

    def __init__(self, windows: Windows, images: Tensor, seen: Tensor, key: Key) -> None:
        self.windows, self.images, self.seen, self.key = windows, images, seen, key
        self.scale = seen.std((0, 2, 3)).clamp_min(_FAINT * float(seen.std()) + 1e-12)  # (f,)
        generator = key.fold("patches").generator()
        patches = Windows(1, pooled=False, side=windows.kernel)
        flat = patches.of_images(images, _PATCHES, generator).flatten(1)
        self.mean = flat.mean(0)  # (d,)
        values, vectors = torch.linalg.eigh(torch.cov(flat.T.double()))
        floor = 1e-6 * float(values.max())
        self.white = (vectors * values.clamp_min(floor).rsqrt()).T.to(flat.dtype)  # (d, d)

    def cleaned(self, seen: Tensor) -> LayerFit:
        """This task with other features."""
        other = copy.copy(self)
        other.seen = seen
        return other

    def start(self, count: int) -> list[Tensor]:
        """Random weights that favour the directions in which patches vary most."""
        generator = self.key.fold("start").generator()
        channels, size = self.seen.shape[1], len(self.mean)
        drawn = torch.randn(count, channels, size, generator=generator)
        drawn = (drawn * torch.linspace(0.2, 1, size)).to(self.seen.device)
        level = 0.3 * self.seen.mean((0, 2, 3)) / self.scale
        return [drawn / drawn.norm(dim=2, keepdim=True), level.repeat(count, 1)]

    def layer(self, found: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Weights (s, f, c, k, k) and biases (s, f) in pixels."""
        weight = self.scale[:, None] * (found[0] @ self.white)
        bias = self.scale * found[1] - weight @ self.mean
        kernel = self.windows.kernel
        shape = (*bias.shape, self.images.shape[1], kernel, kernel)
        return weight.reshape(shape), bias

    def descend(
        self, found: list[Tensor], how: Pass, progress: Progress, stage: str
    ) -> list[Tensor]:
        found = [tensor.clone().requires_grad_() for tensor in found]
        optimiser = torch.optim.Adam(found, how.rate)
        generator = self.key.fold(stage).generator()
        for step in range(how.steps):
            progress(stage, step, how.steps)
            for group in optimiser.param_groups:
                group["lr"] = how.rate * 0.5 * (1 + math.cos(math.pi * step / how.steps))
            apart = self._distance(found, how.windows, how.directions, generator)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(apart.sum())
            optimiser.step()
        progress(stage, how.steps, how.steps)
        return [tensor.detach() for tensor in found]

    @torch.no_grad()
    def judge(self, found: list[Tensor], how: Pass) -> Tensor:
        """(s,) distances on the same windows and directions, more than a step of that pass has."""
        generator = self.key.fold("judge").generator()
        return self._distance(found, _JUDGED * how.windows, _JUDGED * how.directions, generator)

    def _distance(
        self, found: list[Tensor], count: int, directions: int, generator: torch.Generator
    ) -> Tensor:
        weight, bias = self.layer(found)
        starts, channels = bias.shape
        inputs = self.windows.of_images(self.images, count, generator)
        made = self.windows.layer(inputs, weight.flatten(0, 1), bias.flatten())
        made = made.reshape(count, starts, channels, -1) / self.scale[:, None]
        sent = self.windows.of_features(self.seen, count, generator) / self.scale[:, None, None]
        along = _directions(sent[0].numel(), directions, generator).to(sent.device)
        wanted = (sent.flatten(1) @ along).sort(0).values
        have = (made.flatten(2) @ along).sort(0).values  # (m, s, directions)
        apart: Tensor = (have - wanted[:, None]).square().mean((0, 2))
        return apart


def nearest(found: list[Tensor], apart: Tensor, count: int) -> list[Tensor]:
    return [tensor[apart.argsort()[:count]] for tensor in found]


def mirrored(found: list[Tensor]) -> list[Tensor]:
    """Layers that see the negatives, 2·mean - patch, as these see the patches."""
    return [-found[0], found[1]]


def _directions(size: int, count: int, generator: torch.Generator) -> Tensor:
    """(size, count) unit columns, some dense, some with only a few entries."""
    drawn = torch.randn(size, count, generator=generator)
    share = 0.02 + 0.5 * torch.rand(count, generator=generator)
    drawn = drawn * (torch.rand(size, count, generator=generator) < share)
    along: Tensor = drawn / drawn.norm(dim=0).clamp_min(1e-12)
    return along
