"""What the plan says an audit of a split will take: every trained network is in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exhume.auditing.kinds.split_attackers import Seconds, names_for
from exhume.auditing.kinds.split_files import read_split

FIXED = ("as-sent",)


def seconds(settings, records, **changes):
    one = replace(settings, first=("0",), channels=32, attack_epochs=8, **changes)
    return Seconds(one, read_split(one, records), 1)


def trained(takes, name):
    """Without what scoring takes."""
    return takes.attack([name]) - takes.attack(FIXED)


@pytest.mark.parametrize("name", ["shadow", "matched"])
def test_training_grows_with_epochs_records_and_channels(name, settings, records):
    usual = trained(seconds(settings, records), name)
    assert trained(seconds(settings, records, held=30), name) < usual / 2
    assert usual > 0
    longer = replace(settings, first=("0",), channels=32, attack_epochs=16)
    twice = trained(Seconds(longer, read_split(longer, records), 1), name)
    assert twice == pytest.approx(2 * usual)
    wider = replace(longer, channels=128)
    assert trained(Seconds(wider, read_split(wider, records), 1), name) > 3 * twice


def test_who_knows_the_head_also_searches(settings, records):
    """A decoder's training, and a search for every target and every record that judges."""
    usual = trained(seconds(settings, records), "head-known")
    assert trained(seconds(settings, records, held=30), "head-known") < usual
    assert trained(seconds(settings, records, targets=100), "head-known") > usual


def test_a_decoder_and_a_shadow_are_counted_beside_the_network(settings, records):
    takes = seconds(settings, records)
    known, shadow = trained(takes, "head-known"), trained(takes, "shadow")
    assert shadow > 1.5 * known
    owned = takes.owned
    through = takes._pass(owned.module, owned.shape)
    assert known > takes._trained(through, len(owned.parts.shadow), 8)  # a tiny network


def test_a_small_network_on_cifar_is_near_what_was_measured(settings, records):
    """One core, 300 images of 3x32x32, 64 channels, 8 epochs: 25 s of a shadow, 13 of a decoder alone."""
    one = replace(settings, first=("0",), channels=64, attack_epochs=8, batch=128)
    takes = Seconds(one, read_split(one, records), 1)
    scale = 300 * 32 * 32 / (len(takes.owned.parts.shadow) * 8 * 8)
    assert 13 / 2 < scale * (trained(takes, "head-known") - 0.03) < 2 * 13
    assert 25 / 2 < scale * (trained(takes, "shadow") - 0.06) < 2 * 25


def test_every_attacker_and_a_channel_have_an_estimate(settings, records):
    plain, channel = seconds(settings, records), seconds(settings, records, defend="channel")
    for name in names_for(1):
        assert plain.attack([name]) > 0
        assert channel.attack([name]) > 0
    assert channel.attack(["lookalike"]) > plain.attack(["head-known"])
    several = replace(channel, bodies=3)
    assert several.attack(names_for(3)) > channel.attack(names_for(1))
    assert several.training() > channel.training() > 0
