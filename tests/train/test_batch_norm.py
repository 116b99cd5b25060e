from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from exhume.core.contract import ExhumeError
from exhume.models.own import architecture_named
from exhume.train.dp import Privacy
from exhume.train.functional import drops, mixes_batches, trained_alone
from exhume.train.optimisers import Descent
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import Order

CODE = """
import torch
import torch.nn.functional as F
from torch import nn
def dense(*middle):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), *middle, nn.Linear(5, 3))
def normed(): return dense(nn.BatchNorm1d(5), nn.ReLU())
def both(): return dense(nn.BatchNorm1d(5), nn.Dropout())
def train(model, records, rng):
    optimiser = torch.optim.AdamW(model.train().parameters(), lr=0.01)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(records.inputs), records.labels).backward()
        optimiser.step()
def plain(): return dense(nn.ELU(), nn.Linear(5, 5), nn.Sigmoid())
"""
SHAPE = (1, 6, 6)


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return lambda name: architecture_named(
        f"mine.py:{name}", input_shape=SHAPE, classes=3, root=tmp_path
    )


def reference(network, initial, records, batches):
    """The module, its optimiser, a loop."""
    module = network.trainable()
    state = module.state_dict()
    state.update(network.layout.split(initial))
    module.load_state_dict(state)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for rows in batches:
        optimiser.zero_grad()
        F.cross_entropy(module(records.inputs[rows]), records.labels[rows]).backward()
        optimiser.step()
    trained = module.state_dict()
    return network.layout.join({name: trained[name] for name in network.layout.names})


@pytest.mark.parametrize("batch", [0, 5])  # no batch of 2 at the end, which magnifies rounding
def test_weights_and_running_statistics_are_those_of_a_loop(own, batch, make_records, key):
    network, descent = own("normed"), Descent(7, 0.1, 0.9, 0.01)
    fixed = make_records(9, SHAPE, 3, key.fold("fixed"))
    extra = make_records(2, SHAPE, 3, key.fold("extra")).one_each()
    order = Order(batch, key) if batch else None
    recipe = MiniBatch(network, descent, order) if order else FullBatch(network, descent)
    initial = network.initial(key)
    trained = recipe.fit(initial, fixed, extra, key)
    assert "2.running_mean" in network.layout.names
    for model in range(2):
        records = fixed.with_extra(extra, model)
        steps = order.batches(9, 1) if order else None
        batches = [
            torch.arange(10) if steps is None else _rows(next(steps)) for _ in range(descent.steps)
        ]
        want = reference(network, initial, records, batches)
        torch.testing.assert_close(trained[model], want, rtol=1e-4, atol=1e-6)


def _rows(batch):
    return torch.cat([batch.fixed, 9 + batch.extra])


def test_batch_norm_and_dropout_are_trained_alone(own):
    """Only dropout is noise, and only batch norm can be differentiated through."""
    assert [trained_alone(own(name)) for name in ("normed", "plain", "both")] == [True, False, True]
    assert [mixes_batches(own(name)) for name in ("normed", "plain", "both")] == [
        True,
        False,
        False,
    ]
    assert [drops(own(name)) for name in ("normed", "plain", "both")] == [False, False, True]


def test_a_function_of_ones_own_trains_batch_norm_and_dropout(own, make_records, key, tmp_path):
    training = OwnTraining.of(own("both"), "mine.py:train", root=tmp_path)
    fixed = make_records(9, SHAPE, 3, key)
    initial = training.architecture.initial(key)
    trained = training.fit(initial, fixed, fixed.none_for(2), key)
    assert not torch.equal(trained[0], trained[1])  # each model draws its own dropout
    assert training.repeats(initial, fixed, key)


def test_private_training_is_refused(own, make_records, key):
    network, fixed = own("normed"), make_records(9, SHAPE, 3, key)
    recipe = FullBatch(network, privacy=Privacy(1.0, 0.0))
    with pytest.raises(ExhumeError, match="no record has a gradient of its own to clip"):
        recipe.fit(network.initial(key), fixed, fixed.none_for(1), key)
    assert isinstance(network.trainable()[2], nn.BatchNorm1d)
