from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from exhume.core.contract import Key, Records
from exhume.models.mlp import MLP
from exhume.studies.informed.mnemonist import active_share
from exhume.train.optimisers import Descent, FusedRMSProp
from exhume.train.recipe import descend


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_against_training_one_model_with_autograd(make_records, key, activation):
    mlp = MLP((5,), (6, 4), 3, activation)
    descent = Descent(steps=12, rate=0.5, weight_decay=0.01)
    fixed, extra = make_records(9, (5,), 3, key), make_records(3, (5,), 3, key.fold("extra"))
    initial = mlp.initial(Key.from_seed(3))
    shares, trained = active_share(mlp, descent, initial, fixed, extra.one_each())
    assert torch.equal(trained, descend(mlp, descent, initial, fixed, extra.one_each()))
    for model in range(3):
        for layer, naive in enumerate(slow(mlp, descent, initial, fixed, extra, model)):
            torch.testing.assert_close(shares[layer][model], naive)
    seen = torch.cat([share.flatten() for share in shares])
    assert bool((seen == 1).all()) == (activation == "elu")


def slow(mlp, descent, initial, fixed, extra, index):
    """Where the activation's own derivative on the model's record is not zero, step by step."""
    module = mlp.build()
    torch.nn.utils.vector_to_parameters(initial.clone(), module.parameters())
    optimiser = torch.optim.SGD(
        module.parameters(), descent.rate, descent.momentum, weight_decay=descent.weight_decay
    )
    inputs = torch.cat([fixed.inputs, extra.inputs[index : index + 1]])
    labels = torch.cat([fixed.labels, extra.labels[index : index + 1]])
    counts = [torch.zeros(width) for width in mlp.hidden]
    for _ in range(descent.steps):
        own = inputs[-1:].clone()
        for layer in range(len(counts)):
            own = module.get_submodule(f"fc{layer + 1}")(own)
            (slope,) = torch.autograd.grad(module.get_submodule(f"act{layer + 1}")(own).sum(), own)
            counts[layer] += slope[0] != 0
            own = module.get_submodule(f"act{layer + 1}")(own)
        optimiser.zero_grad()
        F.cross_entropy(module(inputs), labels).backward()
        optimiser.step()
    return [count / descent.steps for count in counts]


def test_an_inactive_neuron_learns_nothing_from_the_record(make_records, key):
    mlp, once = MLP((5,), (8,), 3, "relu"), Descent(steps=1)
    fixed, extra = make_records(9, (5,), 3, key), make_records(4, (5,), 3, key.fold("extra"))
    initial = mlp.initial(key)
    (share,), trained = active_share(mlp, once, initial, fixed, extra.one_each())
    scaled = Records(extra.inputs * 1.01, extra.labels, extra.classes)  # active where it was
    (again,), other = active_share(mlp, once, initial, fixed, scaled.one_each())
    assert torch.equal(share, again)
    assert 0 < share.mean() < 1
    moved = (mlp.layout.split(trained - other)["fc1.weight"] != 0).any(2)
    assert torch.equal(moved, share == 1)


def test_fused_rmsprop_is_rmsprop(key):
    start = torch.randn(40, 7, generator=key.generator())
    ours, theirs = (start.clone().requires_grad_(True) for _ in range(2))
    one = FusedRMSProp([ours], 1e-2, decay=0.9, eps=1e-3)
    other = torch.optim.RMSprop([theirs], 1e-2, alpha=0.9, eps=1e-3)
    target = torch.randn(40, 7, generator=key.fold("target").generator())
    for _ in range(50):
        for tensor in (ours, theirs):
            tensor.grad = tensor.detach() - target
        one.advance()
        other.step()
    assert not torch.allclose(ours, start, atol=0.1)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
