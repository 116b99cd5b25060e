from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Layout
from exhume.models.cnn import CNN
from exhume.store.shards import describe


def test_the_defaults_are_table_five():
    cnn = CNN()
    assert cnn.layout.size == 55_208
    assert cnn.features == (32, 12, 12)
    assert cnn.places == (15 * 15, 12 * 12)
    assert str(cnn) == "CNN 16 of 4x4 stride 2, 32 of 4x4 stride 1, then 10-10, elu"


@pytest.mark.parametrize("init", ["lecun", "torch"])
def test_layout_module_and_initial_agree(key, init):
    cnn = CNN((2, 9, 8), (30, 4), (3, 2), (2, 1), (6, 5), 3, activation="tanh", init=init)
    module = cnn.build()
    assert Layout.of(module) == cnn.layout
    assert module(torch.zeros(2, 2, 9, 8)).shape == (2, 3)
    flat = cnn.initial(key)
    assert flat.shape == (cnn.layout.size,)
    assert torch.equal(flat, cnn.initial(key))
    first = cnn.layout.split(flat)["conv1.weight"]
    spread = float(first.std()) * 18**0.5
    assert spread == pytest.approx(1.0 if init == "lecun" else 3**-0.5, rel=0.2)


def test_it_can_be_described():
    assert describe(CNN())["channels"] == [16, 32]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_shape": (784,)}, r"input_shape: \(784,\) given, channels x height x width"),
        ({"kernels": (4,)}, "must be equally many"),
        ({"channels": (0, 3)}, "must be at least 1"),
        ({"input_shape": (3, 5, 5)}, "leave nothing of 5x5"),
        ({"init": "zeros"}, "init: 'zeros' is not one of lecun, torch"),
        ({"activation": "rulu"}, "activation: 'rulu' is not one of"),
    ],
)
def test_impossible_networks_are_refused(arguments, message):
    with pytest.raises(ExhumeError, match=message):
        CNN(**arguments)
