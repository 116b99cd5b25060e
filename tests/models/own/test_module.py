from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from exhume.core.contract import Architecture, ExhumeError, Key
from exhume.models.mlp import MLP
from exhume.models.own import ModuleArchitecture, model_named, recognised
from exhume.models.two_layer import TwoLayer

SHAPE = (1, 4, 4)
KEY = Key.from_seed(0)


def dense(*middle, bias=True):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 6, bias=bias), *middle, nn.Linear(6, 3, bias=bias)
    )


class Doubled(nn.Module):
    """The parameters of an MLP, another function."""

    def __init__(self):
        super().__init__()
        self.net = dense(nn.ReLU())

    def forward(self, x):
        return 2 * self.net(x)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (dense(nn.ReLU()), MLP(SHAPE, (6,), 3, "relu")),
        (dense(nn.Tanh()), MLP(SHAPE, (6,), 3, "tanh")),
        (dense(nn.GELU(), nn.Dropout(0.5)), MLP(SHAPE, (6,), 3, "gelu")),
        (dense(nn.ReLU(), bias=False), TwoLayer(SHAPE, 6, 3, "relu")),
        (MLP(SHAPE, (5, 4), 2, "elu").build(), MLP(SHAPE, (5, 4), 2, "elu")),
    ],
)
def test_fully_connected_networks_are_recognised(module, expected):
    architecture = ModuleArchitecture.of(module, SHAPE)
    assert isinstance(architecture, Architecture)
    assert recognised(architecture) == expected


@pytest.mark.parametrize(
    "module",
    [Doubled(), dense(nn.BatchNorm1d(6), nn.ReLU()), dense(nn.Sigmoid(), nn.ReLU(), nn.Tanh())],
)
def test_others_stay_what_they_are(module):
    architecture = ModuleArchitecture.of(module, SHAPE)
    assert recognised(architecture) is architecture
    ours = MLP(SHAPE, (6,), 3)
    assert recognised(ours) is ours


def test_batch_norm_in_train_mode_can_be_differentiated_for_many_batches_at_once():
    module = dense(nn.BatchNorm1d(6), nn.ReLU())
    architecture = ModuleArchitecture.of(module, SHAPE, "train")
    flat, built = architecture.initial(Key.from_seed(0)), architecture.build()
    batches = torch.rand(3, 5, *SHAPE)

    def loss(point, batch):
        return functional_call(built, architecture.layout.split(point), (batch,)).square().sum()

    together = vmap(grad(loss), (None, 0))(flat, batches)
    module.train()
    module.zero_grad()
    module(batches[1]).square().sum().backward()
    alone = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(together[1], alone, rtol=1e-4, atol=1e-5)


def test_what_a_model_must_take_and_return():
    with pytest.raises(ExhumeError, match=r"does not take records of shape \(9,\)"):
        ModuleArchitecture.of(dense(nn.ReLU()), (9,))
    with pytest.raises(
        ExhumeError, match=r"must return .* numbers for 2 records, it returns \(2, 1, 4, 4\)"
    ):
        ModuleArchitecture.of(nn.Conv2d(1, 1, 1), SHAPE)


def test_models_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nnet = nn.Linear(2, 2)\nmake = lambda: nn.Linear(3, 2)\n"
        "number = 5\nlisting = list\ndef broken():\n    raise KeyError('x')\n"
    )
    assert model_named("mine.py:make", KEY).in_features == 3
    assert model_named("mine:make", KEY).in_features == 3
    assert model_named("mine:net", KEY).in_features == 2
    for spec, message in (
        ("make", "is not of the form package.module:factory"),
        ("nothere.mod:make", "No module named"),
        ("nothere.py:make", "there is no file nothere.py"),
        ("mine:other", "mine has no other"),
        ("mine:number", "gives a int, not an nn.Module"),
        ("mine:listing", "gives a list, not an nn.Module"),
        ("mine:broken", "raised KeyError: 'x'"),
    ):
        with pytest.raises(ExhumeError, match=message):
            model_named(spec, KEY)
