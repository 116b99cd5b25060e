"""The PatchGAN discriminator of Balle22 Table VII: is each patch of an image real or reconstructed?

Five 4x4 convolutions with padding 1: 64 s2, 128 s2, 256 s2, 512 s1, 1 s1, LeakyReLU 0.2 in between.
No normalisation: the table lists none.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.reconstructors import drawn

SMALLEST_SIDE = 24  # 24 -> 12 -> 6 -> 3 -> 2 -> 1: a smaller image leaves no patch
_WIDTHS = (64, 128, 256, 512)
_STRIDES = (2, 2, 2, 1)
_LEAK = 0.2


def patchgan(shape: tuple[int, ...], key: Key) -> nn.Module:
    """(n, c, h, w) images to (n, 1, a, b) logits, positive for real patches; 32x32 gives 2x2."""
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

    return drawn(plain, key.fold("discriminator"))
