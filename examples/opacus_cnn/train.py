"""A CNN trained privately by Opacus, as its owner would write it; `audit.toml` points here."""

import os

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NOISE = float(os.environ.get("NOISE", "1.0"))
CLIP, STEPS = 1.0, 40


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 10),
    )


def train(model, records, rng):
    """One model: clipped gradients of all records, and noise from `rng`, in every step."""
    everybody = TensorDataset(records.inputs, records.labels)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    private, optimiser, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimiser,
        data_loader=DataLoader(everybody, len(everybody), generator=rng),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        noise_generator=rng,
    )
    for _ in range(STEPS):
        for images, labels in loader:
            optimiser.zero_grad()
            F.cross_entropy(private(images), labels).backward()
            optimiser.step()
    return private
