"""A proof needs an update that sees every record: what does not show could be anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from exhume.auditing.proof import _Sent, _visible, proof_of
from exhume.core.contract import Key, Outcome, Reconstruction, Records, Status
from exhume.models.mlp import MLP
from exhume.models.own import ModuleArchitecture
from exhume.train.local import Steps
from exhume.victims.gradient import release_batches

MODEL = MLP((1, 6, 6), (60,), 4, activation="relu")


def released(records, start):
    batch = Records(records.inputs[None], records.labels[None], records.classes)
    gradient, _ = release_batches(MODEL, start, batch)
    return gradient, batch


@pytest.fixture
def records(key):
    inputs = torch.rand(4, 1, 6, 6, generator=key.generator())
    return Records(inputs, torch.arange(4), tuple("abcd"))


def answer(records):
    found = records.inputs[None]
    status = Status(Outcome.CONVERGED)
    return Reconstruction(found, torch.ones(1, len(records)), status, labels=records.labels[None])


def test_what_every_change_shows_is_proved(records):
    start = MODEL.initial(Key.from_seed(1))
    gradient, batch = released(records, start)
    assert 0.3 < _visible(_Sent(gradient, MODEL, Steps()), batch, None) <= 1
    proof = proof_of(gradient, MODEL, answer(records), Steps(), "span")
    assert proof.records == 4
    assert "every change of them that was tried would show" in proof.sentence
    assert "condition number" in proof.sentence


class Pooled(nn.Module):
    """Sees every four pixels as their mean."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(9, 60), nn.Linear(60, 4)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(nn.functional.avg_pool2d(x, 2).flatten(1))))


def test_what_differs_only_where_the_network_is_blind_is_not_proved(records):
    """Every change that is drawn at random shows, and a quarter of the pixels' directions do."""
    net = ModuleArchitecture(Pooled(), (1, 6, 6))
    start = net.initial(Key.from_seed(1))
    batch = Records(records.inputs[None], records.labels[None], records.classes)
    gradient, _ = release_batches(net, start, batch)
    assert _visible(_Sent(gradient, net, Steps()), batch, None) > 0.1
    checks = torch.tensor([[0.1, -0.1], [-0.1, 0.1]]).repeat(3, 3)
    for some in (records, replace(records, inputs=records.inputs + checks)):
        found = proof_of(gradient, net, answer(some), Steps(), "matching")
        assert found.residual < 1e-5
        assert found.records == 0


def test_records_that_no_neuron_sees_are_not_proved(records):
    """All hidden units are off: any records of these labels would give the same update."""
    named = MODEL.layout.split(MODEL.initial(Key.from_seed(1)))
    bias = MODEL.layout.names[1]
    named = {name: torch.full_like(t, -100.0) if name == bias else t for name, t in named.items()}
    gradient, batch = released(records, MODEL.layout.join(named))
    assert _visible(_Sent(gradient, MODEL, Steps()), batch, None) == 0
    strangers = Records(1 - records.inputs, records.labels, records.classes)
    for some in (records, strangers):
        assert proof_of(gradient, MODEL, answer(some), Steps(), "span").records == 0
