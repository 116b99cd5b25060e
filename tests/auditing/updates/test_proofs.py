"""A proof needs an update that sees every record: what does not show could be anything."""

from __future__ import annotations

import pytest
import torch

from exhume.auditing.proof import _Sent, _visible, proof_of
from exhume.core.contract import Key, Outcome, Reconstruction, Records, Status
from exhume.models.mlp import MLP
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
