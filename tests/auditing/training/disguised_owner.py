"""Training that rescales its ReLU units by some 30% afterwards, which changes no output."""

from __future__ import annotations

import torch
from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3))


def rescaled(model, records, rng):
    optimiser = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(records.inputs), records.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    scale = torch.exp(0.3 * torch.randn(12, generator=rng))
    with torch.no_grad():
        model[1].weight.mul_(scale[:, None])
        model[1].bias.mul_(scale)
        model[3].weight.div_(scale)
