"""Attackers of a client that sends numbers with fresh noise: shadows, lookalikes, decoders, naming."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.attacks.split.lookalike import Windows
from exhume.attacks.split.shadow import moments, server_of
from exhume.core.contract import (
    Activations,
    ExhumeError,
    Knowledge,
    NotApplicable,
)
from exhume.models.split.channel import ChannelNetwork, FreshNoise, UnitLength, likeliest
from exhume.models.split.inverter import Decoder, OwnForm, ShadowHead
from exhume.models.split.networks import ResNet18
from exhume.store.shards import NullStore
from exhume.train.single import Schedule

SHORT = Schedule(2, 20, 3e-3, "adam", 0.0)


class Words(nn.Module):
    """The first four pixels, of length 1."""

    def forward(self, x):
        return UnitLength()(x.flatten(1)[:, :4])


@pytest.fixture
def records(make_records, key):
    return make_records(60, (1, 8, 8), 3, key)


@pytest.fixture
def knowledge(records, key):
    body = nn.Linear(4, 3)
    nn.init.normal_(body.weight, generator=key.generator())
    parts = {"body0": body, "head": Words(), "fresh": FreshNoise(0.3)}
    seen = torch.randn(40, 4, generator=key.fold("seen").generator())
    return Knowledge(shadow=records, features=(4,), parts=parts, seen=seen, candidates=records)


def release(records, key, sigma=0.3):
    fresh = FreshNoise(sigma)
    return Activations(fresh(Words()(records.inputs), key.fold("sent").generator()), "encode")


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 7, 9), (3, 12, 20)])
def test_shadows_and_decoders_of_numbers(shape, key):
    images = torch.rand(3, *shape, generator=key.generator())
    sent = ShadowHead(4).module(shape, (5,), key)(images)
    assert sent.shape == (3, 5)
    assert float(sent.norm(dim=1).max()) <= 1
    drawn = Decoder(4).module((5,), shape, key)(sent)
    assert drawn.shape == images.shape
    assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 1
    with pytest.raises(ExhumeError, match="only images can be decoded"):
        Decoder(4).module((5,), (64,), key)


def test_a_shadow_of_the_client_s_own_form(key):
    network = ChannelNetwork(ResNet18((3, 16, 16), 3, 2), "block1", "pool", 5)
    form = OwnForm(network, "encode", "body")
    one, other = (form.module((3, 16, 16), (5,), key.fold(i)) for i in range(2))
    x = torch.rand(4, 3, 16, 16)
    assert one(x).shape == (4, 5)
    assert not torch.equal(one(x), other(x))
    with pytest.raises(ExhumeError, match=r"sends \(5,\), the client sends \(6,\)"):
        form.module((3, 16, 16), (6,), key)


def test_fresh_noise_reaches_shadow_and_decoder(knowledge, records, key):
    """A decoder that was trained without it would have another address and other answers."""
    assert server_of(knowledge, "test").sigma == 0.3
    quiet = replace(knowledge, parts={n: p for n, p in knowledge.parts.items() if n != "fresh"})
    assert server_of(quiet, "test").sigma == 0
    for attack in (
        ShadowInversion((0,), ShadowHead(2), Decoder(4), SHORT, SHORT),
        TrueHeadInversion(Decoder(4), SHORT),
    ):
        one, other = (
            attack.prepare(known, key=key, store=NullStore()).run(release(records, key))
            for known in (knowledge, quiet)
        )
        assert not torch.equal(one.candidates, other.candidates)


def test_the_start_that_classifies_best_is_inverted(knowledge, records, key):
    attack = ShadowInversion((0,), ShadowHead(2), Decoder(4), SHORT, SHORT, 1.0, starts=3)
    found = attack.prepare(knowledge, key=key, store=NullStore()).run(release(records, key))
    each = [found.observed[f"shadow_accuracy_{i}"] for i in range(3)]
    assert found.observed["shadow_accuracy"] == max(each)
    assert found.cost.models == 4
    alone = replace(attack, starts=1).prepare(knowledge, key=key, store=NullStore())
    assert alone.observed["shadow_accuracy"] == each[0]
    with pytest.raises(ExhumeError, match="starts: must be at least 1, got 0"):
        ShadowInversion(starts=0)


def test_moments_of_numbers(key):
    numbers = torch.randn(50, 4, generator=key.generator())
    mean, covariance = moments(numbers)
    torch.testing.assert_close(mean.flatten(), numbers.mean(0))
    torch.testing.assert_close(covariance, torch.cov(numbers.T, correction=0))


def test_the_likeliest_word_is_the_nearest():
    words, sent = torch.randn(30, 4), torch.randn(700, 4)
    named, apart = likeliest(sent, words)
    far = (sent[:, None] - words[None]).norm(dim=2)
    assert torch.equal(named, far.argmin(1))
    torch.testing.assert_close(apart, far.min(1).values)


def test_numbers_have_no_windows():
    with pytest.raises(NotApplicable, match="are no maps, so have no windows"):
        Windows.between((1, 8, 8), (4,), 3)
