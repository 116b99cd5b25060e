"""The networks that map features of released weights to a record (Balle22 Tables IV and VI).

A reconstructor is a value (`Dense`, `Deconv`); `build` makes the module, its weights drawn from a key
by N(0, 1/fan_in) with zero biases, as the authors' library does (theirs truncates the normal). Beside them
stand a small network that corrects a drawn record, and the discriminator of Balle22 Table VII.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.drawing import lecun_normal

_OUTPUTS: dict[str, Callable[[], nn.Module]] = {"sigmoid": nn.Sigmoid, "linear": nn.Identity}


@dataclass(frozen=True)
class Dense:
    """Fully connected with ReLU: the paper's network for MNIST."""

    hidden: tuple[int, ...] = (1000, 1000)  # Balle22 Table IV
    output: str = "sigmoid"  # as the authors' notebook; "linear" for records outside [0, 1]

    def __post_init__(self) -> None:
        _legal_output(self.output)
        if any(width < 1 for width in self.hidden):
            raise ExhumeError(f"hidden: widths must be at least 1, got {self.hidden}")

    def build(self, inputs: int, shape: tuple[int, ...], key: Key) -> nn.Module:
        """(n, inputs) features to (n, *shape) records."""

        def plain() -> nn.Module:
            layers: list[nn.Module] = []
            for fan_in, fan_out in pairwise((inputs, *self.hidden)):
                layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
            last = (inputs, *self.hidden)[-1]
            layers += [nn.Linear(last, math.prod(shape)), _OUTPUTS[self.output]()]
            return nn.Sequential(*layers, nn.Unflatten(1, shape))

        return lecun_normal(plain, key)


@dataclass(frozen=True)
class Deconv:
    """A linear layer, then two transposed convolutions that double the side: the paper's for CIFAR-10.

    FC -> 64 channels of a quarter of the side -> tconv 32, 5x5, s2 -> tconv c, 5x5, s2.
    """

    channels: tuple[int, int] = (64, 32)  # Balle22 Table VI
    output: str = "sigmoid"  # not stated in the paper

    def __post_init__(self) -> None:
        _legal_output(self.output)
        if any(channels < 1 for channels in self.channels):
            raise ExhumeError(f"channels: must be at least 1, got {self.channels}")

    def build(self, inputs: int, shape: tuple[int, ...], key: Key) -> nn.Module:
        """(n, inputs) features to (n, c, h, w) images, h and w multiples of 4."""
        if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
            raise ExhumeError(
                f"records of shape {shape}: the convolutional reconstructor draws images (c, h, w) "
                "with h and w multiples of 4"
            )
        wide, narrow = self.channels
        side = (wide, shape[1] // 4, shape[2] // 4)

        def plain() -> nn.Module:
            return nn.Sequential(
                nn.Linear(inputs, math.prod(side)),
                nn.ReLU(),
                nn.Unflatten(1, side),
                nn.ConvTranspose2d(wide, narrow, 5, stride=2, padding=2, output_padding=1),
                nn.ReLU(),
                nn.ConvTranspose2d(narrow, shape[0], 5, stride=2, padding=2, output_padding=1),
                _OUTPUTS[self.output](),
            )

        return lecun_normal(plain, key)


def _legal_output(output: str) -> None:
    if output not in _OUTPUTS:
        raise ExhumeError(f"output: {output!r} is not one of {', '.join(_OUTPUTS)}")


# Correcting


@dataclass(frozen=True)
class Corrector:
    """What it adds to a record is zero before training.

    For images (c, h, w) convolutions at full and at half the side; otherwise one hidden layer.
    """

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

        network = lecun_normal(plain, key)
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


# Telling real from reconstructed

SMALLEST_SIDE = 24  # 24 -> 12 -> 6 -> 3 -> 2 -> 1: a smaller image leaves no patch
_WIDTHS = (64, 128, 256, 512)
_STRIDES = (2, 2, 2, 1)
_LEAK = 0.2


def patchgan(shape: tuple[int, ...], key: Key) -> nn.Module:
    """PatchGAN: is each patch of an image real or reconstructed?

    (n, c, h, w) images to (n, 1, a, b) logits, positive for real patches; 32x32 gives 2x2. Five 4x4
    convolutions with padding 1: 64 s2, 128 s2, 256 s2, 512 s1, 1 s1, LeakyReLU 0.2 in between, and no
    normalisation.
    """
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
        raise ExhumeError(
            f"records of shape {shape}: the PatchGAN discriminator reads images (c, h, w) "
            f"with sides of at least {SMALLEST_SIDE}"
        )

    def plain() -> nn.Module:
        layers: list[nn.Module] = []
        for (fan_in, fan_out), stride in zip(pairwise((shape[0], *_WIDTHS)), _STRIDES, strict=True):
            layers += [nn.Conv2d(fan_in, fan_out, 4, stride, padding=1), nn.LeakyReLU(_LEAK)]
        return nn.Sequential(*layers, nn.Conv2d(_WIDTHS[-1], 1, 4, 1, padding=1))

    return lecun_normal(plain, key.fold("discriminator"))
