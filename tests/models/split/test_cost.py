from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from exhume.models.split import cost
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.cost import client_ratio, client_share, request_cost
from exhume.models.split.cut import cut
from exhume.models.split.networks import ResNet18
from exhume.models.split.pipeline import Pipeline, SplitClient, undefended

PLAN = Blueprint(ResNet18((3, 16, 16), 5, 4), "conv1", "pool")


def several(count, key):
    return [
        cut(PLAN.network.module(key.fold(i)), "conv1", "pool").body.eval() for i in range(count)
    ]


def planted(bodies, selected, key):
    parts = PLAN.split()
    client = SplitClient(
        parts.head.eval(), torch.zeros(4, 8, 8), selected, PLAN.tail(len(selected))
    )
    return Pipeline(client, tuple(several(bodies, key)), "conv1")


def test_bytes_are_those_of_the_features_and_of_the_answers(key):
    cost = request_cost(planted(3, (0, 2), key), torch.rand(2, 3, 16, 16), repeats=1)
    assert cost.bytes_up == 3 * 2 * 4 * 8 * 8 * 4  # bodies, inputs, channels, side, side, bytes
    assert cost.bytes_down == 3 * 2 * 32 * 4  # bodies, inputs, 8 times the width, bytes of a float
    assert (cost.bodies, cost.selected) == (3, 2)
    assert cost.in_turn > 0


def test_the_clients_time_leaves_the_bodies_out(monkeypatch):
    """A client whose head takes two seconds beside one whose head takes one; bodies take a hundred."""
    now = [0.0]
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.seconds = seconds

        def forward(self, x):
            now[0] += self.seconds
            return x

    def pipeline(seconds):
        client = SplitClient(Slow(seconds), torch.zeros(()), (0,), nn.Identity())
        return Pipeline(client, (Slow(100),), "head")

    assert client_ratio(pipeline(2), pipeline(1), torch.rand(1, 3), repeats=3) == 2


def test_the_client_s_share_is_counted():
    chain = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Flatten(),
        nn.Linear(256, 3),
    )
    own, others = 64 * 18 + 768, 64 * 72
    share = client_share(undefended(chain, "0", "2", (1, 8, 8)), (1, 8, 8))
    assert share == pytest.approx(own / (own + others))
