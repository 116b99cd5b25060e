"""Features that somebody has published, and a head of one's own on top of them."""

from pathlib import Path

import torch
from torch import nn

FILE = Path(__file__).with_name("features.pt")


def features() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 6 * 6, 64),
        nn.Tanh(),
    )


def build() -> nn.Module:
    """The features are frozen: no gradients, and batch norm in eval mode. Only the head is trained."""
    frozen = features()
    frozen.load_state_dict(torch.load(FILE, weights_only=True))
    return nn.Sequential(frozen.requires_grad_(False).eval(), nn.Linear(64, 10))
