from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from exhume.core.contract import Records
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.studies.informed.zero_gradients import zero_gradient_share
from exhume.train.optimisers import Descent

CONV = CNN((2, 7, 7), (6, 8), (3, 2), (2, 1), (5,), 3, "relu")


def naive(architecture, descent, initial, fixed, own, seen, every):
    """One module, one record, autograd and torch.optim.SGD."""
    module = architecture.build()
    torch.nn.utils.vector_to_parameters(initial.clone(), module.parameters())
    optimiser = torch.optim.SGD(module.parameters(), descent.rate, descent.momentum)
    inputs, labels = torch.cat([fixed.inputs, own.inputs]), torch.cat([fixed.labels, own.labels])
    looks = []
    for step in range(descent.steps):
        if step % every == 0:
            loss = F.cross_entropy(module(seen.inputs), seen.labels)
            each = torch.autograd.grad(loss, list(module.parameters()))
            looks.append([float((g == 0).double().mean()) for g in each])
        optimiser.zero_grad()
        F.cross_entropy(module(inputs), labels).backward()
        optimiser.step()
    return torch.tensor(looks, dtype=torch.float64)  # (looks, tensors)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("network", [CONV, MLP((2, 7, 7), (6, 5), 3, "relu")], ids=["cnn", "mlp"])
def test_against_one_module_with_autograd(make_records, key, network, own):
    descent = Descent(steps=5, rate=0.05)
    fixed, seen = make_records(8, (2, 7, 7), 3, key), make_records(3, (2, 7, 7), 3, key.fold("z"))
    initial = network.initial(key.fold(2))
    extra = seen.one_each() if own else fixed.none_for(1)
    found = zero_gradient_share(
        network, descent, initial, fixed, extra, seen=seen.one_each(), every=2
    )
    assert found.steps == (0, 2, 4)
    shares = torch.stack([found.shares[name] for name in network.layout.names], dim=2)
    for i in range(3):
        one = seen[i : i + 1]
        expected = naive(network, descent, initial, fixed, one if own else one[:0], one, 2)
        torch.testing.assert_close(shares[:, i], expected, rtol=0, atol=1e-12)
    assert 0 < shares.mean() < 1


def test_black_pixels_and_neurons_that_are_off(make_records, key):
    mlp = MLP((20,), (9,), 3, "relu")
    fixed, seen = make_records(8, (20,), 3, key), make_records(4, (20,), 3, key.fold("z"))
    seen = Records(seen.inputs * (torch.arange(20) % 4 > 0), seen.labels, seen.classes)
    each = seen.one_each()
    found = zero_gradient_share(mlp, Descent(steps=3), mlp.initial(key), fixed, each, seen=each)
    off, black = found.shares["fc1.bias"], (seen.inputs == 0).double().mean(1)
    assert 0 < off.mean() < 1
    torch.testing.assert_close(found.shares["fc1.weight"], 1 - (1 - off) * (1 - black))
    torch.testing.assert_close(found.shares["fc2.weight"], off)  # an input that is off is zero


def test_smooth_activations_leave_nothing_untouched(make_records, key):
    smooth = CNN((2, 7, 7), (6, 8), (3, 2), (2, 1), (5,), 3, "tanh")
    fixed, seen = make_records(8, (2, 7, 7), 3, key), make_records(3, (2, 7, 7), 3, key.fold("z"))
    found = zero_gradient_share(
        smooth,
        Descent(steps=2),
        smooth.initial(key),
        fixed,
        fixed.none_for(1),
        seen=seen.one_each(),
    )
    assert found.over("").max() == 0


def test_over_weighs_by_size(make_records, key):
    fixed, seen = make_records(8, (2, 7, 7), 3, key), make_records(3, (2, 7, 7), 3, key.fold("z"))
    found = zero_gradient_share(
        CONV, Descent(steps=1), CONV.initial(key), fixed, fixed.none_for(1), seen=seen.one_each()
    )
    weight, bias = found.shares["conv1.weight"], found.shares["conv1.bias"]
    torch.testing.assert_close(found.over("conv1"), (108 * weight + 6 * bias) / 114)
