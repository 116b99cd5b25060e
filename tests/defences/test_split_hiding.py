"""Defences that hide the head: what they send, and that their strength zero is plain training."""

from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Key, Records
from exhume.defences.split.hiding import Adversarial, Fresh, Rotated, Rotation, _reversed
from exhume.defences.split.single import Noise
from exhume.models.split.inverter import Decoder
from exhume.models.split.networks import ResNet18
from exhume.store.shards import NullStore
from exhume.train.single import Schedule, SplitJob

KEY = Key.from_seed(0)
SHAPE = (1, 8, 8)
INPUTS = torch.rand(60, *SHAPE, generator=KEY.generator())


@pytest.fixture(scope="module")
def job():
    network = ResNet18(SHAPE, 3, 4)
    return SplitJob(
        network,
        "conv1",
        "pool",
        Records(INPUTS, torch.arange(60) % 3, tuple("abc")),
        Schedule(2, 20, 0.05),
    )


def train(defence, job):
    return defence.train(job, key=KEY, store=NullStore())


def weights(pipeline):
    client = pipeline.client
    return [t for m in (client.head, client.tail, *pipeline.bodies) for t in m.parameters()]


@pytest.mark.parametrize("nothing", [Fresh(), Rotated(rotated=False), Adversarial()])
def test_no_strength_is_plain_training(job, nothing):
    assert nothing.strength == 0
    pairs = zip(weights(train(nothing, job)), weights(train(Noise(), job)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_fresh_noise_is_new_for_every_request(job):
    pipeline = train(Fresh(0.5), job)
    inputs = job.records.inputs[:20]
    sent = [pipeline.released(inputs) for _ in range(2)]
    assert float((sent[0] - sent[1]).std()) == pytest.approx(0.5 * 2**0.5, rel=0.1)
    assert torch.equal(*(pipeline.released(inputs, KEY) for _ in range(2)))


def test_a_rotation_keeps_lengths_and_is_not_trained(job):
    own = Rotated().job(job)
    drawn = own.fresh(KEY).head.get_submodule("head.mixing").weight
    kept = train(Rotated(), job).client.head.get_submodule("head.mixing").weight
    assert torch.equal(drawn, kept)
    matrix = kept[:, :, 0, 0].double()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(4).double(), atol=1e-6, rtol=0)
    learned = Rotation(job.network, job.first, job.second, learned=True).module(KEY)
    assert learned.get_submodule("head.mixing").weight.requires_grad


def test_a_head_is_pushed_against_its_decoder(job):
    values = torch.rand(5, requires_grad=True)
    passed = _reversed(values, 3.0)
    torch.testing.assert_close(passed, values)
    (gradient,) = torch.autograd.grad(passed.square().sum(), values)
    torch.testing.assert_close(gradient, -3 * 2 * values)
    plain = weights(train(Noise(), job))
    pairs = zip(weights(train(Adversarial(5.0, Decoder(8)), job)), plain, strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("make", [lambda: Fresh(-1.0), lambda: Adversarial(float("nan"))])
def test_bad_strengths_are_named(make):
    with pytest.raises(ExhumeError, match="must be at least 0"):
        make()
