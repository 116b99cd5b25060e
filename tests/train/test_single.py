from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from exhume.core.contract import ExhumeError
from exhume.models.drawing import he_normal
from exhume.store.shards import NullStore
from exhume.train.single import Schedule, train_module


def network(key):
    return he_normal(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), key
    )


def run(key, schedule, store=None, inputs=("data",)):
    x = torch.randn(40, 6, generator=key.fold("x").generator())
    y = (x[:, :3]).argmax(1)
    module = network(key)

    def loss(rows, generator):
        noise = 0.1 * torch.randn(len(rows), 6, generator=generator)
        return F.cross_entropy(module(x[rows] + noise), y[rows])

    trained = train_module(
        module,
        loss,
        40,
        schedule,
        inputs=inputs,
        key=key,
        store=store or NullStore(),
        stage="training",
    )
    return trained, float((trained(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_it_learns(optimiser, key):
    rate = 0.1 if optimiser == "sgd" else 0.03
    trained, accuracy = run(key, Schedule(80, 16, rate, optimiser))
    assert accuracy > 0.9
    assert not trained.training
    assert not any(p.requires_grad for p in trained.parameters())


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("at", [1, 3])
def test_killed_and_resumed_it_ends_with_the_same_bits(optimiser, at, key, dying_store):
    schedule = Schedule(4, 16, 0.01, optimiser)
    whole, _ = run(key, schedule)
    store = dying_store(at)
    with pytest.raises(KeyboardInterrupt):
        run(key, schedule, store)
    resumed, _ = run(key, schedule, store)
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert store.saves == 4
    run(key, schedule, store)
    assert store.saves == 4  # finished work is not done again
    run(key, schedule, store, inputs=("other data",))
    assert store.saves == 8


def test_the_rate_rises_and_falls():
    factors = [Schedule().factor(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == 1
    assert factors[99] < 0.001
    assert factors == sorted(factors[:10]) + sorted(factors[10:], reverse=True)


def test_frozen_parameters_stay(key):
    module = network(key)
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    x = torch.randn(8, 6)
    train_module(
        module,
        lambda rows, _: module(x[rows]).square().mean(),
        8,
        Schedule(2, 4, 0.1),
        inputs=(),
        key=key,
        store=NullStore(),
        stage="s",
    )
    assert torch.equal(module[0].weight, before)


def test_divergence_is_said(key):
    module = nn.Linear(2, 2)
    with pytest.raises(ExhumeError, match="training: training diverged in epoch 1"):
        train_module(
            module,
            lambda rows, _: module(torch.full((len(rows), 2), 1e38)).square().sum(),
            4,
            Schedule(2, 4, 1e3),
            inputs=(),
            key=key,
            store=NullStore(),
            stage="training",
        )


@pytest.mark.parametrize("bad", [{"optimiser": "x"}, {"epochs": -1}, {"batch": 0}, {"rate": 0.0}])
def test_illegal_schedules(bad):
    with pytest.raises(ExhumeError):
        Schedule(**bad)
