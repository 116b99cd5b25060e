"""What every defence of a client's update must satisfy. A new one is a new row."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from exhume.core.contract import (
    ExhumeError,
    Recipe,
    Records,
    TrainingDefence,
)
from exhume.defences.dp import DPTraining
from exhume.models.mlp import MLP
from exhume.models.two_layer import TwoLayer
from exhume.train.dp import Privacy
from exhume.train.local import LocalTraining, batch_loss
from exhume.victims.gradient import cut_batches, release_updates

# No defence, a weak and a strong one
MAKING = {
    "dp: clip": (DPTraining(), DPTraining(clip=0.8), DPTraining(clip=0.01)),
    "dp: noise": (
        DPTraining(),
        DPTraining(clip=10.0, noise_multiplier=0.01),
        DPTraining(clip=10.0, noise_multiplier=1.0),
    ),
}
CLIENTS = {
    "softmax": LocalTraining(MLP((6,), (5,), 3)),
    "logistic, summed": LocalTraining(TwoLayer((6,), 7), reduction="sum"),
    "two steps": LocalTraining(MLP((6,), (5,), 3, "relu"), steps=2, rate=0.3),
}


@pytest.fixture(params=CLIENTS)
def local(request):
    return CLIENTS[request.param]


@pytest.fixture
def batches(make_records, local, key):
    records = make_records(12, (6,), 3, key)
    if local.architecture.outputs == 1:
        records = Records(records.inputs, records.labels % 2, ("a", "b"))
    return cut_batches(records, 3)


@pytest.fixture
def start(local, key):
    return local.architecture.initial(key).double()


@pytest.fixture(params=MAKING)
def making(request):
    return MAKING[request.param]


def test_strength_zero_is_the_identity(making, local):
    assert making[0].strength == 0
    assert making[0].harden(local) is local


def test_a_stronger_defence_moves_the_update_further(making, local, start, batches, key):
    plain, _ = release_updates(local, start, batches)
    _, weak, strong = making
    assert 0 < weak.strength < strong.strength
    moved = [
        float(
            (release_updates(d.harden(local), start, batches, key)[0].values - plain.values).norm()
        )
        for d in (weak, strong)
    ]
    assert 0 < moved[0] < moved[1]


def test_they_are_frozen_values_with_a_docstring(making):
    defence = making[1]
    assert isinstance(defence, TrainingDefence)
    assert dataclasses.is_dataclass(defence)
    assert defence.__dataclass_params__.frozen
    for heading in ("Sees:", "Assumes:", "Guarantees:", "Reference:"):
        assert heading in (type(defence).__doc__ or "")


def test_same_key_same_bits_and_each_client_its_own_noise(local, start, batches, key):
    private = DPTraining(1.0, 1.0).harden(local)
    first, second = (release_updates(private, start, batches, key)[0].values for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, release_updates(private, start, batches, key.fold(1))[0].values)
    alone = private.updates(start, batches[1:2], key, first=1)
    assert torch.equal(alone[0], first[1])
    clipped = release_updates(dataclasses.replace(private, privacy=Privacy(1.0)), start, batches)[0]
    noise = first - clipped.values
    assert not torch.allclose(noise[0], noise[1])


# What they compute


def naive(local, start, inputs, labels):
    """Clipping record by record, with autograd on a module."""
    here = start.clone()
    layout = local.architecture.layout
    for _ in range(local.steps):
        total = torch.zeros_like(here)
        for record, label in zip(inputs.double(), labels, strict=True):
            point = here.clone().requires_grad_()
            outputs = torch.func.functional_call(
                local.architecture.build(), layout.split(point), (record[None],)
            )
            (slope,) = torch.autograd.grad(batch_loss(outputs, label[None]), point)
            total += slope * min(1.0, local.privacy.clip / float(slope.norm()))
        here = here - local.rate * (total / len(labels) if local.reduction == "mean" else total)
    return (start - here) / (local.steps * local.rate)


def test_clipping_is_that_of_every_record(local, start, batches):
    clipped = dataclasses.replace(local, privacy=Privacy(0.3))
    seen, _ = release_updates(clipped, start, batches)
    for values, inputs, labels in zip(seen.values, batches.inputs, batches.labels, strict=True):
        torch.testing.assert_close(values, naive(clipped, start, inputs, labels))
    generous, _ = release_updates(dataclasses.replace(local, privacy=Privacy(1e6)), start, batches)
    torch.testing.assert_close(generous.values, release_updates(local, start, batches)[0].values)


def test_the_noise_is_as_large_as_said(key, make_records):
    local = LocalTraining(MLP((30,), (40,), 3))
    batches = cut_batches(make_records(8, (30,), 3, key), 4)
    start = local.architecture.initial(key).double()
    quiet, loud = (
        release_updates(DPTraining(0.5, s).harden(local), start, batches, key)[0].values
        for s in (0.0, 3.0)
    )
    assert float((loud - quiet).std()) == pytest.approx(3.0 * 0.5 / 4, rel=0.05)


def test_local_training_is_a_recipe_that_ends_where_its_update_says(key, make_records):
    local = LocalTraining(MLP((6,), (5,), 3), steps=3, rate=0.2)
    assert isinstance(local, Recipe)
    assert str(local) == "3 local steps of rate 0.2, mean loss"
    assert "one local step" in str(DPTraining(1.0).harden(LocalTraining(local.architecture)))
    fixed, extra = make_records(4, (6,), 3, key), make_records(2, (6,), 3, key.fold(1)).one_each()
    start = local.architecture.initial(key).double()
    ends = local.fit(start, fixed, extra, key)
    here = start
    inputs = torch.cat([fixed.inputs, extra.inputs[1]])
    labels = torch.cat([fixed.labels, extra.labels[1]])
    for _ in range(3):
        one = naive(dataclasses.replace(local, steps=1), here, inputs, labels)
        here = here - 0.2 * one
    torch.testing.assert_close(ends[1], here)


def test_what_is_refused(key):
    network = MLP((6,), (5,), 3)
    with pytest.raises(ExhumeError, match="reduction: 'max' is not one of mean, sum"):
        LocalTraining(network, reduction="max")
    batch = Records(torch.zeros(1, 2, 6), torch.zeros(1, 2, dtype=torch.long), ())
    private = DPTraining(1.0, 1.0).harden(LocalTraining(network))
    with pytest.raises(ExhumeError, match="key: private training draws noise"):
        release_updates(private, network.initial(key), batch)


def test_the_guarantee_is_that_of_its_steps():
    defence = DPTraining(1.0, 4.0)
    assert defence.epsilon(1) < defence.epsilon(10)
