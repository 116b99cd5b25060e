"""One factory, one key: the same weights through every door."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch

from exhume.core.contract import ExhumeError, Key, Layout
from exhume.models.own import architecture_named, model_named, module_named
from exhume.models.split.blueprint import OwnNetwork

SOURCE = """
import random
import numpy as np, torch
from torch import nn
from exhume.models.mlp import MLP
def make():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        net[1].weight += random.random()
        net[3].weight += float(np.random.rand())
    return net
def ours(): return MLP((4,), (3,), 2)
def lazy(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
fixed = make()
kept = nn.Linear(4, 2)
kept.trace = torch.ones(1, requires_grad=True) * 2
"""
SHAPE = (1, 2, 2)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "net.py").write_text(SOURCE)


def flat(module):
    return Layout.of(module).join({n: p.detach() for n, p in module.named_parameters()})


def through_every_door(spec, key):
    return {
        "named": flat(model_named(spec, key)),
        "module": flat(module_named(spec, key)),
        "architecture": architecture_named(spec, input_shape=SHAPE, classes=2).initial(key),
        "split": flat(OwnNetwork(spec, SHAPE).module(key)),
    }


@pytest.mark.parametrize("spec", ["net.py:make", "net.py:fixed"])
def test_the_same_weights_through_every_door(spec, key):
    found = through_every_door(spec, key)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    again = through_every_door(spec, key)
    for name, values in found.items():
        assert torch.equal(values, found["named"]), name
        assert torch.equal(values, again[name]), name
    other = flat(model_named(spec, Key.from_seed(1)))
    assert torch.equal(other, found["named"]) == (spec == "net.py:fixed")


def test_the_global_generators_are_left_alone(key):
    np.random.seed(5)
    torch.manual_seed(5)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state()
    through_every_door("net.py:make", key)
    assert np.random.get_state()[1].tolist() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_module_of_the_file_is_copied(key):
    first, second = (model_named("net.py:fixed", key) for _ in range(2))
    assert first is not second
    assert first[1].weight is not second[1].weight


def test_an_architecture_of_ours_is_built_where_a_module_is_needed(key):
    assert model_named("net.py:ours", key).input_shape == (4,)
    assert isinstance(module_named("net.py:ours", key), torch.nn.Module)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("net.py:lazy", "net.py:lazy: 1.weight has no shape yet; run one batch through it"),
        ("net.py:kept", "net.py:kept cannot be copied: Only Tensors created explicitly"),
        ("net.py:SHAPE", "net.py has no SHAPE"),
        ("net.py:random", "net.py:random gives a module, not an nn.Module"),
    ],
)
def test_one_sentence_whichever_door(spec, sentence, key):
    for door in (
        lambda: model_named(spec, key),
        lambda: architecture_named(spec, input_shape=SHAPE, classes=2),
        lambda: OwnNetwork(spec, SHAPE).module(key),
    ):
        with pytest.raises(ExhumeError, match=f"^model: {sentence}"):
            door()
