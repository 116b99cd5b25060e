from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from exhume.bench.ensembler import BodiesCase, measure
from exhume.core.contract import ExhumeError, silent
from exhume.models.split import cost
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.cost import client_seconds, client_share, request_cost
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
    assert cost.bytes_up_once == 2 * 4 * 8 * 8 * 4  # inputs, channels, side, side, bytes of a float
    assert cost.bytes_up == 3 * cost.bytes_up_once
    assert cost.bytes_down == 3 * 2 * 32 * 4  # bodies, inputs, 8 times the width, bytes of a float
    assert (cost.inputs, cost.bodies, cost.selected) == (2, 3, 2)
    assert 0 < cost.slowest_body <= cost.in_turn


def test_the_clients_time_leaves_the_bodies_out(monkeypatch):
    """A client whose head takes two seconds takes as long; one beside it takes none."""
    now = [0.0]
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(nn.Module):
        def forward(self, x):
            now[0] += 2
            return x

    quick = SplitClient(nn.Identity(), torch.zeros(()), (0,), nn.Identity())
    slow = SplitClient(Slow(), torch.zeros(()), (0,), nn.Identity())
    x = torch.rand(1, 3)
    assert client_seconds([slow, quick], x, [[x], [x]], repeats=3) == [2, 0]
    with pytest.raises(ExhumeError, match="1 given for 2 clients"):
        client_seconds([slow, quick], x, [[x]])


def test_the_bench_says_what_it_compares():
    (entry,) = measure([BodiesCase(2, 1, width=4)], silent, repeats=1, client_repeats=3)
    assert entry["ratio"] == entry["baseline"] / entry["ours"] > 0
    assert entry["client_ratio"] == pytest.approx(1 / entry["ratio"])
    assert 0 < entry["slowest_body_seconds"] <= entry["bodies_in_turn_seconds"]
    assert entry["bytes_up"] == 2 * entry["bytes_up_once"] == 2 * 4 * 16 * 16 * 4


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
