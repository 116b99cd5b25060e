from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from exhume import data
from exhume.attacks.informed.flipping_gates import FlippingGates, _Gates
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.contract import Key, Knowledge, Records, silent
from exhume.data import Sizes
from exhume.models.mlp import MLP
from exhume.store import NullStore
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


def test_a_network_with_kinks_gives_its_records_back():
    """The gates' steps are what brings them from near to exact."""
    key = Key.from_seed(5)
    recipe = FullBatch(MLP((1, 8, 8), (10,), 10, "relu"), Descent(steps=40))
    parts = data.split(data.load("digits"), Sizes(300, 6, 0, 0, 0), key)
    initial = recipe.architecture.initial(key)
    release, secret = release_one_each(
        recipe, initial, parts.fixed, parts.target, key=key, store=NullStore(), chunk=8
    )
    knowledge = Knowledge(recipe=recipe, initial=initial, fixed=parts.fixed)
    fitted = ThroughTraining().prepare(knowledge, key=key, store=NullStore())
    truth = secret.open()

    def errors():
        found = fitted.run(release)
        return (found.candidates[:, 0] - truth.inputs).square().flatten(1).mean(1)

    exact = errors()
    object.__setattr__(fitted.gates, "mlp", MLP((1, 8, 8), (10,), 10, "elu"))  # not needed, then
    assert float(exact.sort().values[2]) < 1e-6  # rounding decides the cell that others end in
    assert float(errors().median()) > 1e-5
