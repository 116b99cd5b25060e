"""Mini-batches and Adam, stacked, against torch.optim one model at a time; the order of the records."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.store.shards import describe
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import Order

OPTIMISERS = {
    "descent": Descent(steps=11, rate=0.2, momentum=0.7, weight_decay=0.02),
    "adam": Adam(steps=11, rate=0.05, weight_decay=0.02),
    "adamw": Adam(steps=11, rate=0.05, weight_decay=0.02, decoupled=True),
}


def torch_optimiser(optimiser, parameters):
    if isinstance(optimiser, Adam):
        kind = torch.optim.AdamW if optimiser.decoupled else torch.optim.Adam
        return kind(
            parameters,
            lr=optimiser.rate,
            betas=(optimiser.beta1, optimiser.beta2),
            eps=optimiser.epsilon,
            weight_decay=optimiser.weight_decay,
        )
    return torch.optim.SGD(
        parameters,
        lr=optimiser.rate,
        momentum=optimiser.momentum,
        weight_decay=optimiser.weight_decay,
    )


def alone(architecture, optimiser, start, fixed, extra, order):
    """One model; batches cut from the epochs' orders by a plain loop."""
    model = architecture.build().to(start.dtype)
    torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
    stepper = torch_optimiser(optimiser, model.parameters())
    inputs = torch.cat([fixed.inputs, extra.inputs[0]])
    labels = torch.cat([fixed.labels, extra.labels[0]])
    done = epoch = 0
    while done < optimiser.steps:
        n, e = len(fixed), extra.labels.shape[1]
        rows = order.epoch(epoch, n, e) if order else torch.arange(n + e)
        size = order.size if order else n + e
        for begin in range(0, len(rows), size):
            if done == optimiser.steps:
                break
            part = rows[begin : begin + size]
            stepper.zero_grad()
            F.cross_entropy(model(inputs[part]), labels[part]).backward()
            stepper.step()
            done += 1
        epoch += 1
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("size", [0, 1, 4, 50])
@pytest.mark.parametrize("extras", [0, 1, 2])
def test_equals_torch_optim_one_at_a_time(make_records, key, kind, size, extras):
    mlp, optimiser = MLP((6,), (5, 4), 3), OPTIMISERS[kind]
    fixed = make_records(9, (6,), 3, key)
    fixed = Records(fixed.inputs.double(), fixed.labels, fixed.classes)
    flat = make_records(3 * extras, (6,), 3, key.fold("extra"))
    extra = Records(
        flat.inputs.double().reshape(3, extras, 6), flat.labels.reshape(3, extras), flat.classes
    )
    order = Order(size, key.fold("order")) if size else None
    recipe = MiniBatch(mlp, optimiser, order) if order else FullBatch(mlp, optimiser)
    start = mlp.initial(key).double()
    found = recipe.fit(start, fixed, extra, key)
    for i in range(3):
        expected = alone(mlp, optimiser, start, fixed, extra[i : i + 1], order)
        torch.testing.assert_close(found[i], expected, rtol=1e-7, atol=1e-9)


def test_the_general_path_takes_the_same_batches(make_records, key):
    cnn = CNN((1, 6, 6), (2,), (3,), (1,), (4,), 3)
    order, optimiser = Order(4, key), OPTIMISERS["descent"]
    fixed = make_records(9, (1, 6, 6), 3, key)
    extra = make_records(2, (1, 6, 6), 3, key.fold("extra")).one_each()
    found = MiniBatch(cnn, optimiser, order).fit(cnn.initial(key), fixed, extra, key)
    for i in range(2):
        expected = alone(cnn, optimiser, cnn.initial(key), fixed, extra[i : i + 1], order)
        torch.testing.assert_close(found[i], expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(0, 12), e=st.integers(0, 3), size=st.integers(1, 9), epoch=st.integers(0, 3))
def test_an_epoch_sees_every_record_once(n, e, size, epoch):
    order = Order(size, Key.from_seed(4))
    rows = order.epoch(epoch, n, e)
    assert sorted(rows.tolist()) == list(range(n + e))
    without = order.epoch(epoch, n, 0)
    assert torch.equal(rows[rows < n], without)
    whole = -(-(n + e) // size)
    batches = list(islice(order.batches(n, e), whole))
    assert sum(len(batch) for batch in batches) == n + e
    assert all(len(batch) == size for batch in batches[:-1])


def test_the_extra_record_may_come_anywhere():
    places = {int((Order(1, Key.from_seed(i)).epoch(0, 3, 1) == 3).nonzero()[0]) for i in range(60)}
    assert places == {0, 1, 2, 3}


def test_the_order_is_part_of_the_recipe(make_records, key):
    recipe = MiniBatch(MLP((6,), (5,), 3), Descent(steps=9), Order(4, key.fold("order")))
    fixed = make_records(9, (6,), 3, key)
    start = recipe.architecture.initial(key)
    found = recipe.fit(start, fixed, fixed.none_for(1), key)
    again = recipe.fit(start, fixed, fixed.none_for(1), key.fold("another"))
    assert torch.equal(found, again)
    other = recipe.with_order(key.fold("adversary"))
    assert describe(other) != describe(recipe)
    assert not torch.equal(other.fit(start, fixed, fixed.none_for(1), key), found)
    assert str(recipe).startswith("batches of 4 in random order, 9 steps")
    assert recipe.bytes_per_model(1000) == recipe.bytes_per_model(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Order(0, Key.from_seed(0)), "batch: 0 given, at least 1 needed"),
        (lambda: Descent(steps=-1), "steps: -1 given, at least 0 needed"),
        (lambda: Adam(steps=-1), "steps: -1 given, at least 0 needed"),
        (lambda: Adam(beta2=1.0), r"beta2: 1.0 given, needed in \[0, 1\)"),
    ],
)
def test_impossible_settings_are_named(call, message):
    with pytest.raises(ExhumeError, match=message):
        call()
