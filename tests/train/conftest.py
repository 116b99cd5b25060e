"""The reference of training: one model at a time."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def one_at_a_time():
    """One module, one optimiser of torch's, autograd: (p,)."""

    def train(architecture, descent, initial, fixed, extra):
        model = architecture.build()
        torch.nn.utils.vector_to_parameters(initial.clone(), model.parameters())
        options = {"momentum": descent.momentum, "weight_decay": descent.weight_decay}
        optimiser = torch.optim.SGD(model.parameters(), lr=descent.rate, **options)
        inputs = torch.cat([fixed.inputs, extra.inputs[0]])
        labels = torch.cat([fixed.labels, extra.labels[0]])
        for _ in range(descent.steps):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
        return torch.cat([part.detach().flatten() for part in model.parameters()])

    return train
