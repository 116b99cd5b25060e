"""The channel: what leaves the client, where its noise comes from, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from torch import nn

from exhume.bounds.channel import bits
from exhume.core.contract import ExhumeError, Key, Records
from exhume.defences.split.channel import Channel
from exhume.models.split.blueprint import Blueprint, OwnNetwork
from exhume.models.split.channel import (
    ChannelNetwork,
    FreshNoise,
    UnitLength,
    system_gaussian,
    through,
)
from exhume.models.split.networks import ResNet18
from exhume.models.split.parts import load_client, load_pipeline, save_pipeline
from exhume.store.shards import NullStore
from exhume.train.single import Schedule, SplitJob, train_split

FACTORY = f"{__file__}:small"
CHANNEL = Channel(0.25, 6)


def small():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Linear(32, 3),
    )


def refile(folder, change):
    """Alter the client's part, and the manifest so that only its content gives it away."""
    path = folder / "client.safetensors"
    state = change(load_file(path))
    save_file(state, path)
    about = folder / "manifest.json"
    tensors = {
        n: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
        for n, t in state.items()
    }
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    said = json.loads(about.read_text()) | {"sha256": sha256, "tensors": tensors}
    about.write_text(json.dumps(said))
    path.chmod(0o600)


@pytest.fixture(scope="module")
def job():
    labels = torch.arange(60) % 3
    inputs = torch.rand(60, 1, 8, 8, generator=Key.from_seed(0).generator())
    records = Records(0.5 * inputs + labels[:, None, None, None] / 4, labels, ("a", "b", "c"))
    network = OwnNetwork(FACTORY, (1, 8, 8))
    return SplitJob(network, "0", "2", records, Schedule(2, 30, 0.05), augment=False)


@pytest.fixture(scope="module")
def trained(job):
    return CHANNEL.train(job, key=Key.from_seed(0), store=NullStore())


def test_numbers_of_length_one_leave_with_noise_of_their_own(trained, job):
    x = job.records.inputs[:1].expand(400, 1, 8, 8)
    clean = trained.client.head(x)
    assert clean.shape == (400, 6)
    lengths = clean.norm(dim=1)
    assert float(lengths.max()) <= 1
    assert float(lengths.min()) > 0.999
    added = trained.released(x) - clean
    assert len({tuple(row) for row in added.tolist()}) == 400  # never the same
    assert stats.kstest((added / 0.25).flatten().numpy(), "norm").pvalue > 1e-4
    corr = torch.corrcoef(added.T).fill_diagonal_(0)
    assert float(corr.abs().max()) < 0.2


def test_the_key_repeats_an_experiment_and_a_client_in_use_has_none(trained, job, key):
    x = job.records.inputs[:5]
    assert torch.equal(trained.released(x, key), trained.released(x, key))
    assert not torch.equal(trained.released(x, key), trained.released(x, key.fold(1)))
    torch.manual_seed(0)
    one = trained.client.send(x)
    torch.manual_seed(0)
    assert not torch.equal(one, trained.client.send(x))
    right = trained.accuracy(x, job.records.labels[:5], key)
    assert right == trained.accuracy(x, job.records.labels[:5], key)


def test_noise_comes_from_the_system_number_by_number(monkeypatch):
    asked = []

    def counted(size):
        asked.append(size)
        return real(size)

    real = os.urandom
    monkeypatch.setattr(os, "urandom", counted)
    drawn = system_gaussian((5001,))
    assert asked == [16 * 2501]
    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-4
    assert bool(torch.isfinite(drawn).all())
    for byte, size in ((b"\x00", 12.1), (b"\xff", 1e-7)):  # the ends of what can be drawn
        monkeypatch.setattr(os, "urandom", lambda count, byte=byte: byte * count)
        assert float(system_gaussian((2,)).abs().max()) <= size


def test_without_the_system_s_randomness_nothing_is_sent(trained, job, monkeypatch):
    def fails(size):
        raise NotImplementedError("no source")

    monkeypatch.setattr(os, "urandom", fails)
    with pytest.raises(ExhumeError, match=r"gives no randomness \(no source\); without it nothing"):
        trained(job.records.inputs[:2])


def test_what_is_not_finite_is_not_sent(trained, job):
    broken = job.records.inputs[:2].clone()
    broken[1, 0, 0, 0] = math.nan
    with pytest.raises(ExhumeError, match="a number is not finite, and noise cannot hide it"):
        trained.released(broken)


def test_what_is_sent_lies_on_a_grid(key):
    sent = through(torch.rand(100, 6), 0.3, key.generator())
    assert torch.equal(sent * 2**16, (sent * 2**16).round())


def test_unit_length_of_anything():
    values = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-20, 0.0], [1e18, 1e18]])
    lengths = UnitLength()(values).norm(dim=1)
    assert float(lengths.max()) <= 1
    assert float(lengths[0]) == pytest.approx(1, abs=1e-5)
    assert float(lengths[1]) == 0


def test_fresh_noise_follows_its_generator(key):
    fresh, zeros = FreshNoise(2.0), torch.zeros(2000, 3)
    one = fresh(zeros, key.generator())
    assert torch.equal(one, fresh(zeros, key.generator()))
    assert float(one.std()) == pytest.approx(2, rel=0.05)


def test_bits_and_noise_are_two_names_of_one_thing():
    channel = Channel.of_bits(12.0, 16)
    assert channel.bits == pytest.approx(12)
    assert channel.bits == bits(16, channel.sigma)
    assert (Channel().bits, Channel().strength) == (math.inf, 0)


def test_the_noise_of_training_changes_what_is_trained(job, key, trained):
    other = replace(CHANNEL, sigma=0.5).train(job, key=key, store=NullStore())
    x = job.records.inputs[:5]
    assert not torch.equal(trained.client.head(x), other.client.head(x))


def test_a_channel_is_put_into_a_trained_network(job, key):
    """Without a step it has the network's own weights on both sides; training then changes them."""
    trained = train_split(job, key=key, store=NullStore())
    none = replace(job, schedule=Schedule(0, 30, 0.05))
    made = CHANNEL.fine_tune(none, trained, key=key, store=NullStore())
    whole = trained.whole.state_dict()
    for part, prefix, own in (
        (made.client.head, "head.", "head."),
        (made.bodies[0], "body.rest.", "body."),
        (made.client.tail, "tail.", "tail."),
    ):
        kept = part.state_dict()
        assert all(
            torch.equal(kept[n], whole[own + n.removeprefix(prefix)]) for n in kept if prefix in n
        )
    tuned = CHANNEL.fine_tune(job, trained, key=key, store=NullStore())
    x = job.records.inputs[:5]
    assert not torch.equal(tuned.client.head(x), made.client.head(x))
    assert tuned.client.sigma == 0.25
    plain = Channel().fine_tune(none, trained, key=key, store=NullStore())
    assert torch.equal(plain(x), trained(x))


def test_a_killed_training_ends_with_the_same_bits(job, key, trained, dying_store):
    store = dying_store(1)
    with pytest.raises(KeyboardInterrupt):
        CHANNEL.train(job, key=key, store=store)
    resumed = CHANNEL.train(job, key=key, store=store)
    x = job.records.inputs[:5]
    assert torch.equal(resumed(x, key.generator()), trained(x, key.generator()))


def test_both_sides_come_back_from_disk(job, trained, tmp_path, key):
    blueprint = CHANNEL.job(job).blueprint
    save_pipeline(trained, blueprint, tmp_path / "c", tmp_path / "s")
    back = load_pipeline(tmp_path / "c", tmp_path / "s", factory=FACTORY)
    x = job.records.inputs[:7]
    assert back.client.sigma == 0.25
    assert torch.equal(back(x, key.generator()), trained(x, key.generator()))
    assert not torch.equal(back(x), back(x))
    kept = load_client(tmp_path / "c", factory=FACTORY)
    assert (kept.feature, kept.blueprint) == ((6,), blueprint)


def test_a_client_without_its_noise_is_refused(job, trained, tmp_path):
    blueprint = CHANNEL.job(job).blueprint
    for place, change in enumerate(
        (
            lambda state: {n: t for n, t in state.items() if n != "sigma"},
            lambda state: state | {"sigma": torch.tensor(0.0)},
            lambda state: state | {"sigma": torch.tensor(math.nan)},
            lambda state: state | {"sigma": torch.ones(2)},
        )
    ):
        client, server = tmp_path / f"c{place}", tmp_path / f"s{place}"
        save_pipeline(trained, blueprint, client, server)
        refile(client, change)
        with pytest.raises(ExhumeError, match="a channel needs fresh noise above 0"):
            load_client(client, factory=FACTORY)
    quiet = replace(trained, client=replace(trained.client, sigma=0.0))
    with pytest.raises(ExhumeError, match="pipeline: a channel needs fresh noise above 0"):
        save_pipeline(quiet, blueprint, tmp_path / "c", tmp_path / "s")
    loud = replace(trained, cut="0")
    with pytest.raises(ExhumeError, match="fresh noise without a channel guarantees nothing"):
        save_pipeline(loud, job.blueprint, tmp_path / "c", tmp_path / "s")


def test_a_channel_in_a_manifest():
    network = ChannelNetwork(ResNet18(width=4), "conv1", "pool", 5)
    plan = Blueprint(network, "encode", "body")
    assert Blueprint.read(plan.written(), "here") == plan
    assert plan.shapes() == ((5,), (32,))
    twice = Blueprint(ChannelNetwork(network, "encode", "body"), "encode", "body").written()
    with pytest.raises(ExhumeError, match="a channel within a channel"):
        Blueprint.read(twice, "here")
    with pytest.raises(ExhumeError, match="numbers: 0 given, at least 1 needed"):
        ChannelNetwork(ResNet18(), "conv1", "pool", 0)
    hidden = plan.written() | {"network": {**plan.written()["network"], "network": 3}}
    with pytest.raises(ExhumeError, match="network is 3, KeyedNetwork is needed"):
        Blueprint.read(hidden, "here")
