"""A noisy channel between client and server: k numbers of length at most 1, and fresh Gaussian noise.

    client:  features -> k numbers -> u of length 1 -> u + sigma·N, N fresh for every request
    server:  k numbers -> features again -> the rest of the network

The noise of a client in use comes from the system's randomness, number by number: a generator with a seed of
32 or 64 bits in between could be tried out by whoever holds the answer. What is sent is rounded to a
grid of 2^-16, so that the last digits of a floating-point sum do not tell its terms apart.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.drawing import he_normal
from exhume.models.split.cut import cut
from exhume.models.split.networks import KeyedNetwork

ENCODED, EXPANDED = "encode", "body"
"""Where a `ChannelNetwork` is cut: last parts of the client's head and of the server's body."""

_GRID = 2.0**-16
_AT_ONCE = 500  # requests that are named together
_BELOW = 1 - 1e-6  # length, so that rounding does not lift it above 1


class UnitLength(nn.Module):
    """(n, k) to the same directions with length 1, less a rounding; never more than 1."""

    def forward(self, values: Tensor) -> Tensor:
        return _BELOW * F.normalize(values, dim=1)


class FreshNoise(nn.Module):
    """Gaussian noise of its own on every number at every call, from a generator."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, values: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
        return values + self.sigma * noise.to(values.device)


@dataclass(frozen=True)
class ChannelNetwork:
    """Another network with k numbers in place of the features at its first cut.

    A chain of head, encode, body and tail: encode is two dense layers and `UnitLength`, and the body begins
    with a dense layer, batch norm and ReLU back to the shape of the features. With one dense layer alone
    inputs of two classes would not get far enough apart to be told through noise.
    """

    network: KeyedNetwork
    first: str  # last layer of the other network's head
    second: str  # last layer of its body
    numbers: int = 16  # k
    hidden: int = 32  # width of the encoder

    def __post_init__(self) -> None:
        for name, value in (("numbers", self.numbers), ("hidden", self.hidden)):
            if value < 1:
                raise ExhumeError(f"{name}: {value} given, at least 1 needed")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.network.input_shape

    def module(self, key: Key) -> nn.Sequential:
        parts = cut(self.network.module(key), self.first, self.second)
        shape = parts.feature_shape(self.input_shape)
        size = math.prod(shape)

        def narrow() -> nn.Module:
            inner = nn.Linear(size, self.hidden, bias=False)
            sharp = (nn.BatchNorm1d(self.hidden), nn.ReLU())
            last = nn.Linear(self.hidden, self.numbers)
            return nn.Sequential(nn.Flatten(), inner, *sharp, last, UnitLength())

        def wide() -> nn.Module:
            dense = nn.Linear(self.numbers, size, bias=False)
            return nn.Sequential(dense, nn.BatchNorm1d(size), nn.ReLU(), nn.Unflatten(1, shape))

        encode = he_normal(narrow, key.fold("encode"))
        expand = he_normal(wide, key.fold("expand"))
        chain: OrderedDict[str, nn.Module] = OrderedDict(head=parts.head, encode=encode)
        chain["body"] = nn.Sequential(OrderedDict(expand=expand, rest=parts.body))
        chain["tail"] = parts.tail
        return nn.Sequential(chain)


def through(values: Tensor, sigma: float, generator: torch.Generator | None) -> Tensor:
    """What leaves the client: (n, k) numbers plus noise of its own for each, rounded to the grid.

    generator: of an experiment that must be repeatable; None: the system's randomness.
    """
    if not bool(torch.isfinite(values).all()):
        raise ExhumeError(
            "channel: a number is not finite, and noise cannot hide it; nothing is sent"
        )
    if generator is None:
        noise = system_gaussian(tuple(values.shape)).to(values.device)
    else:
        noise = torch.randn(values.shape, generator=generator, dtype=torch.float64)
        noise = noise.to(values.device)
    noisy = values.double() + sigma * noise
    return (_GRID * (noisy / _GRID).round()).to(values.dtype)


def system_gaussian(shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, fp64, each pair from 128 bits of the system's randomness (Box and Muller)."""
    count = math.prod(shape)
    pairs = -(-count // 2)
    try:
        drawn = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64) >> np.uint64(11)
    except (OSError, NotImplementedError) as error:
        raise ExhumeError(
            f"channel: this system gives no randomness ({error}); without it nothing is sent"
        ) from error
    uniform = (drawn.astype(np.float64) + 0.5) * 2.0**-53  # above 0, at most 1
    radius = np.sqrt(-2 * np.log(uniform[:pairs]))
    angle = 2 * np.pi * uniform[pairs:]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return torch.from_numpy(both[:count].reshape(shape))


@torch.no_grad()
def likeliest(sent: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """(n, *features) sent and (K, *features) to the nearest of the latter (n,), and how far it is (n,).

    Behind Gaussian noise of equal size on all numbers, the nearest of equally likely words is the likeliest,
    and no rule names more of them (Bayes).
    """
    flat = words.flatten(1)
    nearest = [torch.cdist(part, flat).min(1) for part in torch.split(sent.flatten(1), _AT_ONCE)]
    return torch.cat([n.indices for n in nearest]), torch.cat([n.values for n in nearest])
