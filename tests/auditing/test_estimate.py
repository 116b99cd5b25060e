"""Estimates beside what was measured: docs/tutorials has both audits."""

from __future__ import annotations

import pytest

from exhume.auditing.plan import search_seconds
from exhume.core.contract import Key
from exhume.models.mlp import MLP
from exhume.models.own import architecture_named
from exhume.train.fleet import seconds_per_model_of
from exhume.train.optimisers import Descent
from exhume.train.recipe import MiniBatch
from exhume.train.stacked import Order

CODE = """
from torch import nn
def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 4 * 4, 10),
    )
"""


def test_models_with_batch_norm_cost_their_steps(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    net = architecture_named("mine.py:build", input_shape=(1, 8, 8), classes=10, root=tmp_path)
    recipe = MiniBatch(net, Descent(60, 0.05, momentum=0.9), Order(32, Key.from_seed(0)))
    many = seconds_per_model_of(recipe, 200, 1)
    few = seconds_per_model_of(recipe, 4, 1)
    assert 360 * many == pytest.approx(77, rel=0.2)
    assert few > many / 2  # steps cost, however few records they see


def test_a_search_through_a_fully_connected_network():
    net = MLP((3, 32, 32), (500, 500), 10)
    assert search_seconds(net, 1800 * 2 * 60) == pytest.approx(19, rel=0.2)
