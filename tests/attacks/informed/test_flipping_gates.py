from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

from exhume import readers
from exhume.attacks.informed.flipping_gates import FlippingGates, _Gates
from exhume.attacks.informed.inversion import FittedThroughTraining
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.core.contract import Key, Knowledge, Records, silent
from exhume.models.mlp import MLP
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each


def gradient_of(mlp, weights, records):
    weights = weights.clone().requires_grad_()
    module = mlp.build().double()
    logits = functional_call(module, mlp.layout.split(weights), (records.inputs,))
    loss = torch.nn.functional.cross_entropy(logits, records.labels, reduction="sum")
    return torch.autograd.grad(loss, weights)[0]


@pytest.mark.parametrize(("layer", "name"), [(0, "fc1.bias"), (1, "fc2.bias")])
@pytest.mark.parametrize("activation", ["relu", "leaky-relu"])
def test_what_a_gate_does_when_it_opens(layer, name, activation, key):
    """The bias of its unit is moved across the kink of one record: the gradient jumps by the push."""
    mlp = MLP((6,), (5, 4), 3, activation)
    draw = key.generator()
    records = Records(
        torch.rand(7, 6, generator=draw, dtype=torch.float64), torch.arange(7) % 3, ("a", "b", "c")
    )
    gates = _Gates(mlp, records)
    weights = mlp.initial(key).double()
    unit, record = 2, 3
    start = gates.entering(weights)[layer][unit, record]
    opened, closed = weights.clone(), weights.clone()
    mlp.layout.split(opened)[name][unit] += 1e-7 - start
    mlp.layout.split(closed)[name][unit] += -1e-7 - start
    jump = gradient_of(mlp, opened, records) - gradient_of(mlp, closed, records)
    slope = 0.01 if activation == "leaky-relu" else 0.0
    found = (1 - slope) * gates.opened(opened, torch.tensor([[0, layer, unit, record]]))[0]
    assert float(jump.norm()) > 1e-3
    assert float((jump - found).norm()) < 1e-3 * float(jump.norm())


def test_only_networks_with_kinks_have_gates(key):
    records = Records(torch.rand(4, 6), torch.arange(4) % 2, ("a", "b"))
    smooth = FlippingGates(MLP((6,), (5,), 2, "elu"), Descent(), records, 3.0, key, silent)
    assert not smooth.needed


def errors_before_and_after(recipe, fixed, target, key, monkeypatch, **settings):
    """(n,) before the steps among the gates, nan where there were none, and of what is found."""
    initial = recipe.architecture.initial(key)
    release, secret = release_one_each(
        recipe, initial, fixed, target, key=key, store=NullStore(), chunk=8
    )
    truth = secret.open().inputs.flatten(1)
    knowledge = Knowledge(recipe=recipe, initial=initial, fixed=fixed)
    fitted = ThroughTraining(**settings).prepare(knowledge, key=key, store=NullStore())
    before = torch.full((len(truth),), torch.nan)
    plain = FittedThroughTraining._among_gates

    def watched(self, game, found):
        (row,) = (release.parameters == game.parameters).all(1).nonzero()[:, 0]
        before[row] = (found.records[0] - truth[row]).square().mean()
        return plain(self, game, found)

    monkeypatch.setattr(FittedThroughTraining, "_among_gates", watched)
    found = fitted.run(release).candidates[:, 0].flatten(1)
    return before, (found - truth).square().mean(1)


def test_a_network_with_kinks_gives_its_records_back(monkeypatch):
    """The gates' steps are what brings them from near to exact."""
    digits = readers.load("digits")
    small = replace(digits, inputs=torch.nn.functional.avg_pool2d(digits.inputs, 2))
    recipe = FullBatch(MLP((1, 4, 4), (6,), 10, "relu"), Descent(steps=20))
    key = Key.from_seed(1)
    parts = readers.split(small, Sizes(100, 2, 0, 0, 0), key)
    near, exact = errors_before_and_after(
        recipe, parts.fixed, parts.target[1:], key, monkeypatch, labels=1
    )
    assert float(near) > 1e-5
    assert float(exact) < 1e-6


@pytest.mark.slow
def test_a_larger_network_with_kinks_gives_its_records_back(monkeypatch):
    recipe = FullBatch(MLP((1, 8, 8), (10,), 10, "relu"), Descent(steps=40))
    key = Key.from_seed(5)
    parts = readers.split(readers.load("digits"), Sizes(300, 6, 0, 0, 0), key)
    near, exact = errors_before_and_after(recipe, parts.fixed, parts.target, key, monkeypatch)
    assert float(exact.sort().values[2]) < 1e-6  # rounding decides the cell that others end in
    assert float(near.nanmedian()) > 1e-5
