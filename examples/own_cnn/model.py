"""A small convolutional network, as anybody would write it; nothing of exhume in it."""

from torch import nn


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=3),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 16),
        nn.ELU(),
        nn.Linear(16, 10),
    )
