from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from exhume.core.contract import ExhumeError, Key, Recipe
from exhume.models.mlp import MLP
from exhume.models.own import architecture_named
from exhume.store.shards import NullStore, address
from exhume.train import functional
from exhume.train.fleet import train_fleet
from exhume.train.optimisers import Descent
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch

SHAPE = (1, 6, 6)
SOURCE = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(64, 3)
    def forward(self, x):
        return self.fc(F.relu(self.conv(x - self.mean)).flatten(1))

def dense(*middle):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), *middle, nn.Linear(5, 3))
def plain(): return dense(nn.Tanh())
def drops(): return dense(nn.ReLU(), nn.Dropout(0.5))
def normed(): return dense(nn.BatchNorm1d(5), nn.ReLU())
def head():
    net = dense(nn.BatchNorm1d(5), nn.ReLU())
    net[1].requires_grad_(False)
    net[2].eval().requires_grad_(False)
    return net
class Asks(nn.Linear):
    def forward(self, x):
        y = super().forward(torch.sin(x.flatten(1)))
        return y if self.weight.norm() < 1e9 else 2 * y
def asks(): return Asks(36, 3)
class Draws(nn.Linear):
    def forward(self, x): return super().forward(F.dropout(x.flatten(1), 0.5, self.training))
def draws(): return Draws(36, 3)
class Mixes(nn.Linear):
    def forward(self, x): return super().forward((x - x.mean(0)).flatten(1))
def mixes(): return Mixes(36, 3)

class Nearest(nn.Linear):
    # its training writes the records into buffers
    def __init__(self):
        super().__init__(36, 3)
        self.register_buffer("shelf", torch.zeros(0, 36))
        self.register_buffer("scale", torch.tensor(1.0))
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    def forward(self, x): return super().forward(x.flatten(1)) * self.scale
def nearest(): return Nearest()
def shelve(model, records, rng):
    model.shelf = records.inputs.flatten(1)
    model.frozen.data += 1
def shelved(model, records, rng):
    shelve(model, records, rng)
    return nn.DataParallel(model)
def still():
    net = dense(nn.BatchNorm1d(5), nn.ReLU())
    net[2].eval()
    return net
def roused(model, records, rng): train(model.train(), records, rng)
seen = []
def looks(model, records, rng): seen.append(records)

def train(model, records, rng):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(records.inputs), records.labels).backward()
        optimiser.step()

def shuffled(model, records, rng):
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in torch.randperm(len(records), generator=rng).split(5):
        optimiser.zero_grad()
        noise = 1 + 0.1 * np.random.rand() + 0.1 * random.random()
        (noise * F.cross_entropy(model(records.inputs[rows]), records.labels[rows])).backward()
        optimiser.step()

def wrapped(model, records, rng):
    train(model, records, rng)
    return nn.DataParallel(model)
calls = []
def restless(model, records, rng):
    calls.append(0)
    for p in model.parameters():
        p.data.add_(len(calls))
def other(model, records, rng): return nn.Linear(2, 2)
def number(model, records, rng): return 0.5
def diverges(model, records, rng): model[1].weight.data.fill_(float("inf"))
def fails(model, records, rng): raise IndexError("row 5\\nof many")
nothing = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(SOURCE)

    def make(name):
        return architecture_named(f"mine.py:{name}", input_shape=SHAPE, classes=3, root=tmp_path)

    return make


@pytest.fixture
def trained_by(own, tmp_path):
    def make(network, function):
        return OwnTraining.of(own(network), f"mine.py:{function}", root=tmp_path)

    return make


@pytest.fixture
def game(make_records, key):
    extra = make_records(3, SHAPE, 3, key.fold("extra")).one_each()
    return make_records(9, SHAPE, 3, key), extra


@pytest.mark.parametrize("name", ["plain", "Net", "head"])
def test_own_networks_train_side_by_side_as_they_do_alone(own, game, key, name):
    """A loop with torch.optim on the factory's own module is the reference."""
    net, (fixed, extra) = own(name), game
    functional.check_side_by_side(net)
    initial = net.initial(key)
    recipe = FullBatch(net, Descent(5, 0.2, 0.9, 0.01))
    assert recipe.bytes_per_model(10) > 4 * net.layout.size
    together = recipe.fit(initial, fixed, extra, key)
    module = net.trainable()
    with torch.no_grad():
        for n, tensor in net.layout.split(initial).items():
            module.get_parameter(n).copy_(tensor)
    learned = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(learned, lr=0.2, momentum=0.9, weight_decay=0.01)
    records = fixed.with_extra(extra, 1)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(module(records.inputs), records.labels).backward()
        optimiser.step()
    alone = torch.cat([p.detach().flatten() for p in learned])
    torch.testing.assert_close(together[1], alone, rtol=1e-4, atol=1e-5)
    logits = functional.logits(net, together, fixed.inputs)[1]
    torch.testing.assert_close(logits, module.eval()(fixed.inputs).detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("normed", r"2 \(BatchNorm1d\) takes statistics over the batch, which models trained side"),
        ("drops", r"3 \(Dropout\) drops inputs at random"),
        ("draws", "its forward draws random numbers while it trains"),
        ("mixes", "its forward mixes the records of a batch"),
        ("asks", r"cannot be trained side by side with others \(.*give a train function"),
    ],
)
def test_what_cannot_be_trained_side_by_side_is_named(own, name, message):
    with pytest.raises(ExhumeError, match=message) as error:
        functional.check_side_by_side(own(name))
    assert "\n" not in str(error.value)


def test_an_own_function_is_a_recipe(trained_by, own, game, key):
    recipe, (fixed, extra) = trained_by("Net", "train"), game
    assert isinstance(recipe, Recipe)
    assert str(recipe) == "the owner's own function mine.py:train"
    initial = recipe.architecture.initial(key)
    got = recipe.fit(initial, fixed, extra, key)
    want = FullBatch(own("Net"), Descent(3, 0.1, 0.0)).fit(initial, fixed, extra, key)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert recipe.repeats(initial, fixed, key)
    wrapped = trained_by("Net", "wrapped").fit(initial, fixed, extra, key)
    assert torch.equal(wrapped, got)
    assert recipe.bytes_per_model(10) > 0


def test_an_own_function_also_trains_networks_of_ours(game, key, own, tmp_path):
    fixed, extra = game
    recipe = OwnTraining.of(MLP(SHAPE, (5,), 3), "mine.py:train", root=tmp_path)
    initial = recipe.architecture.initial(key)
    want = FullBatch(recipe.architecture, Descent(3, 0.1, 0.0)).fit(initial, fixed, extra, key)
    torch.testing.assert_close(recipe.fit(initial, fixed, extra, key), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", ["drops", "normed"])
def test_randomness_is_the_models_own_however_the_job_is_cut(trained_by, game, key, network):
    recipe, (fixed, extra) = trained_by(network, "shuffled"), game
    initial = recipe.architecture.initial(key)
    states = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    whole = recipe.fit(initial, fixed, extra, key)
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    torch.manual_seed(99)
    parts = [recipe.fit(initial, fixed, extra[i : i + 1], key, i) for i in range(3)]
    assert torch.equal(torch.cat(parts), whole)
    assert recipe.repeats(initial, fixed, key)
    same = fixed[:1].one_each()
    apart = recipe.fit(initial, fixed, same[torch.tensor([0, 0])], key)
    assert not torch.equal(apart[0], apart[1])


def test_running_statistics_are_part_of_what_is_released(trained_by, game, key):
    recipe, (fixed, extra) = trained_by("normed", "train"), game
    initial = recipe.architecture.initial(key)
    trained = recipe.fit(initial, fixed, extra, key)
    module = recipe.architecture.trainable()
    state = {n: t.clone() for n, t in recipe.architecture.layout.split(initial).items()}
    module.load_state_dict(state, strict=False)
    records = fixed.with_extra(extra, 2)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(module(records.inputs), records.labels).backward()
        optimiser.step()
    split = recipe.architecture.layout.split(trained[2])
    torch.testing.assert_close(split["2.running_mean"], module[2].running_mean)
    logits = functional.logits(recipe.architecture, trained, fixed.inputs)[2]
    torch.testing.assert_close(logits, module.eval()(fixed.inputs).detach(), rtol=1e-4, atol=1e-4)


def test_a_function_that_does_not_repeat_is_a_fact_and_no_error(trained_by, game, key):
    recipe, (fixed, _) = trained_by("plain", "restless"), game
    assert not recipe.repeats(recipe.architecture.initial(key), fixed, key)


def test_it_is_named_by_its_code_and_sent_by_name(trained_by, game, key, tmp_path):
    def name(recipe):
        return address("f", recipe, (), Key.from_seed(0), 0)

    first, (fixed, extra) = trained_by("plain", "train"), game
    initial = first.architecture.initial(key)
    arrived = pickle.loads(pickle.dumps(first))
    assert arrived == first
    assert torch.equal(
        arrived.fit(initial, fixed, extra, key), first.fit(initial, fixed, extra, key)
    )
    assert name(trained_by("plain", "train")) == name(first)
    late = pickle.loads(pickle.dumps(first))
    (tmp_path / "mine.py").write_text(SOURCE.replace("lr=0.1", "lr=0.2"))
    assert name(trained_by("plain", "train")) != name(first)
    with pytest.raises(ExhumeError, match="train: mine.py:train is not the code that it was"):
        late.fit(initial, fixed, extra, key)
    chunks = train_fleet(
        first, initial, fixed, extra, key=key, store=NullStore(), chunk=2, stage="s"
    )
    assert torch.equal(torch.cat(list(chunks)), first.fit(initial, fixed, extra, key))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fails", "train: mine.py:fails raised IndexError: row 5$"),
        ("number", "mine.py:number returns a float, legal are nothing and the module"),
        ("other", "the module that mine.py:other returns lacks 1.weight, 1.bias, 3.weight"),
        ("diverges", "mine.py:diverges ends with weights that are not finite"),
    ],
)
def test_what_the_function_does_wrong_is_one_sentence(trained_by, game, key, function, message):
    recipe, (fixed, extra) = trained_by("plain", function), game
    with pytest.raises(ExhumeError, match=message):
        recipe.fit(recipe.architecture.initial(key), fixed, extra, key)


def test_what_vmap_cannot_do_an_own_function_can(trained_by, game, key):
    recipe, (fixed, extra) = trained_by("asks", "train"), game
    trained = recipe.fit(recipe.architecture.initial(key), fixed, extra, key)
    with pytest.raises(ExhumeError, match="cannot be trained side by side"):
        FullBatch(recipe.architecture).fit(trained[0], fixed, extra, key)
    weight, bias = recipe.architecture.layout.split(trained[1]).values()
    want = torch.sin(fixed.inputs.flatten(1)) @ weight.T + bias
    torch.testing.assert_close(
        functional.logits(recipe.architecture, trained, fixed.inputs)[1], want
    )


def test_what_does_not_fit_is_refused(trained_by, make_records, key):
    with pytest.raises(
        ExhumeError, match="train: mine.py:nothing is a int, which cannot be called"
    ):
        trained_by("plain", "nothing")
    recipe, other = trained_by("plain", "train"), make_records(4, (5,), 3, key)
    with pytest.raises(ExhumeError, match=r"records of shape \(5,\) do not fit mine.py:plain"):
        recipe.fit(recipe.architecture.initial(key), other, other.none_for(1), key)


def test_batch_norm_with_frozen_statistics_is_a_constant(own):
    assert isinstance(own("head").build()[2], nn.BatchNorm1d)
    functional.check_side_by_side(own("head"))


@pytest.mark.parametrize(
    ("network", "function", "changed"),
    [
        ("plain", "train", ()),
        ("Net", "train", ()),
        ("nearest", "train", ()),
        ("nearest", "shelve", ("frozen", "shelf")),
        ("nearest", "shelved", ("frozen", "shelf")),
        ("normed", "train", ()),  # they are in the layout
        ("still", "train", ()),
        ("still", "roused", ("2.running_mean", "2.running_var")),
    ],
)
def test_what_training_changes_outside_the_layout(
    trained_by, game, key, network, function, changed
):
    recipe, (fixed, _) = trained_by(network, function), game
    initial = recipe.architecture.initial(key)
    assert recipe.changed_outside(initial, fixed, key) == changed
    assert recipe.changed_outside(initial[None], fixed, key) == changed


def test_the_unknown_record_is_at_any_place(trained_by, game, key):
    recipe, (fixed, extra) = trained_by("plain", "looks"), game
    seen, initial = recipe._function.__globals__["seen"], recipe.architecture.initial(key)
    places = []
    for turn in range(12):
        recipe.fit(initial, fixed, extra, key, 3 * turn)
        for i, records in enumerate(seen[-3:]):
            same = (records.inputs == extra.inputs[i]).flatten(1).all(1).nonzero()[:, 0].tolist()
            assert len(same) == 1
            places += same
            kept = [j for j in range(9) if j != same[0]]
            assert torch.equal(records.inputs[kept], fixed.inputs[kept])
            assert torch.equal(
                records.labels.sort().values, fixed.with_extra(extra, i).labels.sort().values
            )
    assert set(places) == set(range(10))
    recipe.fit(initial, fixed, extra[2:], key, 2)
    assert torch.equal(seen[-1].inputs, seen[2].inputs)  # however the job is cut
    recipe.fit(initial, fixed, fixed.none_for(1), key)
    assert torch.equal(seen[-1].inputs, fixed.inputs)
