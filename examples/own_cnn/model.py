"""A small convolutional network with batch norm, as anybody would write it: it needs no exhume code."""

from torch import nn


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )
