"""Networks that their owners wrote in ways of their own: the informed attack runs on all of them."""

from __future__ import annotations

import sys

import pytest
import torch

from exhume.attacks.informed.closed_form import ClosedForm, find_imprint
from exhume.core.contract import Knowledge, Outcome
from exhume.models.own import architecture_named
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each

SHAPE = (1, 6, 6)
SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

class Backwards(nn.Module):
    "the head is defined first, one layer is never used, one parameter is a number"
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.unused = nn.Linear(900, 2)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.conv = nn.Conv2d(1, 4, 3)
    def forward(self, x):
        return self.head(self.scale * F.elu(self.conv(x)).flatten(1))

class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(900, 36)
        self.head = nn.Linear(36, 3)
    def forward(self, x): return self.head(x.flatten(1))

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(36, 5), nn.Linear(36, 7)
        self.head = nn.Linear(12, 3)
    def forward(self, x):
        x = x.flatten(1)
        return self.head(torch.cat([self.left(x).tanh(), self.right(x).tanh()], 1))

class Attends(nn.Module):
    "six rows of an image as six tokens"
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1, 6, 8))
        self.enter = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        tokens = self.enter(x[:, 0]) + self.place
        seen = self.norm(tokens)
        return self.head((tokens + self.mix(seen, seen, seen, need_weights=False)[0]).mean(1))

class Scales(nn.Module):
    "no matrix at all"
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(36)), nn.Parameter(torch.zeros(3))
    def forward(self, x):
        return (x.flatten(1) * self.weight).reshape(-1, 3, 12).sum(2) + self.bias

def frozen():
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 400), nn.Tanh(), nn.Linear(400, 3))
    net[1].requires_grad_(False)
    return net
def normed():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5), nn.ELU(), nn.Linear(5, 3)
    )
def train(model, records, rng):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(model(records.inputs), records.labels).backward()
        optimiser.step()
"""


@pytest.fixture
def play(tmp_path, monkeypatch, make_mixtures, key):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nets.py").write_text(SOURCE)

    def run(name):
        net = architecture_named(f"nets.py:{name}", input_shape=SHAPE, classes=3, root=tmp_path)
        records = make_mixtures(60, SHAPE, 3, key)
        recipe = FullBatch(net, Descent(5, 0.2))
        if net.not_per_record:
            recipe = OwnTraining.of(net, "nets.py:train", root=tmp_path)
        fixed, shadow, target = records[:8], records[8:56], records[56:]
        initial = net.initial(key)
        common = {"key": key, "store": NullStore()}
        release, secret = release_one_each(recipe, initial, fixed, target, chunk=4, **common)
        knowledge = Knowledge(
            architecture=net, recipe=recipe, initial=initial, fixed=fixed, shadow=shadow
        )
        prepared = ClosedForm(chunk=16).prepare(knowledge, **common)
        return prepared.run(release), secret.open(), find_imprint(net, initial, initial, fixed)

    return run


@pytest.mark.parametrize(
    ("name", "imprinted"),
    [
        ("Backwards", False),
        ("Unused", False),
        ("Branches", False),
        ("Attends", False),
        ("Scales", False),
        ("frozen", True),
        ("normed", True),
    ],
)
def test_the_informed_attack_runs(play, name, imprinted):
    found, truth, imprint = play(name)
    assert found.status.outcome is Outcome.CONVERGED
    assert found.candidates.shape[2:] == SHAPE
    assert bool(torch.isfinite(found.candidates).all())
    assert (imprint is not None) == imprinted
    best = (found.candidates[:, 0] - truth.inputs).square().mean()
    assert best < (truth.inputs - 0.5).square().mean()  # closer than grey
