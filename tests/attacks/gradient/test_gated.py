"""Whole batches behind fully connected layers with gates, at honest weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exhume import readers
from exhume.attacks.gradient.chains import chain_of
from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.gates import GateAttack
from exhume.core.contract import Key, Knowledge, NotApplicable, Outcome, Records
from exhume.models.own import ModuleArchitecture
from exhume.store.shards import NullStore
from exhume.victims.gradient import release_batches


def drawn(*layers, shape=(1, 8, 8)):
    torch.manual_seed(0)
    return ModuleArchitecture.of(nn.Sequential(*[make() for make in layers]), shape)


def dense(fan_in, fan_out, **options):
    return lambda: nn.Linear(fan_in, fan_out, **options)


def leaky(slope):
    return lambda: nn.LeakyReLU(slope)


def digits(count, seed=0):
    records = readers.load("digits")
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(seed))
    return records[order[:count]]


def run(network, records, attack=None, **options):
    batch = Records(records.inputs[None], records.labels[None], records.classes)
    start = network.initial(Key.from_seed(0))
    release, _ = release_batches(network, start, batch, **options)
    knowledge = Knowledge(architecture=network)
    attack = attack or GateAttack()
    prepared = attack.prepare(knowledge, key=Key.from_seed(0), store=NullStore())
    return prepared.run(release)


def errors(found, records):
    """Relative, of each record's own candidate."""
    got, want = found.candidates[0].flatten(1), records.inputs.flatten(1)
    return torch.cdist(want.double(), got.double()).min(1).values / want.norm(dim=1)


TWO = (nn.Flatten, dense(64, 128), nn.ReLU, dense(128, 10))
DEEP = (
    *(nn.Flatten, dense(64, 90), nn.ReLU, dense(90, 80), leaky(0.2), dense(80, 70)),
    *(nn.ReLU, dense(70, 10)),
)


@pytest.mark.parametrize(("layers", "batch"), [(TWO, 8), (TWO, 16), (DEEP, 8)])
def test_every_record_comes_back_and_is_counted(layers, batch):
    records = digits(batch)
    found = run(drawn(*layers), records)
    assert found.status.outcome is Outcome.CONVERGED
    assert found.observed["batch_size"] == batch
    assert found.candidates.shape[1] == batch
    assert float(errors(found, records).max()) < 0.01


def test_leaky_gates():
    records = digits(5)
    network = drawn(nn.Flatten, dense(64, 128), leaky(0.1), dense(128, 10))
    assert float(errors(run(network, records), records).max()) < 0.01


def test_two_outputs_and_one():
    records = digits(6)
    halves = Records(records.inputs, records.labels % 2, ("even", "odd"))
    for outputs in (2, 1):
        network = drawn(nn.Flatten, dense(64, 128), nn.ReLU, dense(128, outputs))
        assert float(errors(run(network, halves), records).max()) < 0.01


def test_a_trained_network():
    network = drawn(*TWO)
    module, rest = network.module, digits(800, seed=1)
    adam = torch.optim.Adam(module.parameters(), 1e-3)
    for _ in range(30):
        adam.zero_grad()
        nn.functional.cross_entropy(module(rest.inputs), rest.labels).backward()
        adam.step()
    records = digits(8)
    assert float(errors(run(network, records), records).max()) < 0.01


@pytest.mark.parametrize("bias", [True, False])
def test_a_trained_batch_norm_in_eval_mode_is_part_of_the_layer(bias):
    layers = (nn.Flatten, dense(64, 128, bias=bias), lambda: nn.BatchNorm1d(128), nn.ReLU)
    network = drawn(*layers, dense(128, 10))
    module, rest = network.module.train(), digits(400, seed=1)
    adam = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(10):
        adam.zero_grad()
        nn.functional.cross_entropy(module(rest.inputs), rest.labels).backward()
        adam.step()
    network = ModuleArchitecture.of(module, (1, 8, 8), "eval")
    chain = chain_of(network, network.initial(Key.from_seed(0)))
    assert [layer.norm for layer in chain.layers] == ["2", ""]
    records = digits(8)
    found = run(network, records)
    assert found.status.outcome is Outcome.CONVERGED
    assert float(errors(found, records).max()) < 0.01
    assert float(errors(run(network, digits(1)), digits(1)).max()) < 1e-3


def test_the_same_seed_gives_the_same_bits():
    records, network = digits(8), drawn(*TWO)
    first, second = run(network, records), run(network, records)
    assert torch.equal(first.candidates, second.candidates)


def test_too_many_records_are_refused_in_words():
    network = drawn(nn.Flatten, dense(64, 20), nn.ReLU, dense(20, 10))
    found = run(network, digits(12))
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert "12 records are too many for" in found.status.reason


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("bias", [True, False])
def test_without_a_bias_the_slopes_of_the_loss_tell_the_size(bias, count):
    layers = (dense(64, 128, bias=False), nn.ReLU, dense(128, 10, bias=bias))
    records = digits(count)
    found = run(drawn(nn.Flatten, *layers), records)
    assert found.status.outcome is Outcome.CONVERGED
    assert float(errors(found, records).max()) < 0.01


def test_without_a_bias_and_with_two_outputs_the_size_is_open():
    network = drawn(nn.Flatten, dense(64, 80, bias=False), nn.ReLU, dense(80, 2))
    records = digits(4)
    found = run(network, Records(records.inputs, records.labels % 2, ("even", "odd")))
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert "has no bias" in found.status.reason


def test_a_smooth_activation_is_no_gate():
    network = drawn(nn.Flatten, dense(64, 80), nn.Tanh, dense(80, 10))
    found = run(network, digits(4))
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert float(errors(run(network, digits(1)), digits(1)).max()) < 1e-3  # alone it needs no gate


def test_several_local_steps_claim_nothing():
    found = run(drawn(*TWO), digits(6), GateAttack(rounds=2), steps=5, rate=0.5)
    assert found.status.outcome is not Outcome.CONVERGED


def test_the_architecture_is_needed():
    for attack in (GateAttack(), FeatureDecoding()):
        with pytest.raises(NotApplicable, match="needs the architecture"):
            attack.prepare(Knowledge(), key=Key.from_seed(0), store=NullStore())


def conv(*more):
    return (lambda: nn.Conv2d(1, 8, 3, padding=1), nn.ReLU, nn.Flatten, dense(512, 64), *more)


def test_the_chain_of_a_network_behind_convolutions():
    network = drawn(*conv(nn.ReLU, dense(64, 10)))
    chain = chain_of(network, network.initial(Key.from_seed(0)))
    assert [layer.name for layer in chain.layers] == ["3", "5"]
    assert chain.layers[0].leak == 0
    assert not chain.whole


def test_images_behind_a_convolution():
    records, network = digits(6), drawn(*conv(nn.ReLU, dense(64, 10)))
    found = run(network, records, FeatureDecoding(steps=200))
    assert found.observed["batch_size"] == 6
    squared = errors(found, records) * records.inputs.flatten(1).norm(dim=1) / 8
    assert float(squared.max()) < 0.1  # 20 dB; strangers of the class are 10 apart
    refused = run(network, records)
    assert "is not the record itself" in refused.status.reason


def test_a_batch_of_one_needs_a_single_layer():
    layers = (lambda: nn.Conv2d(1, 8, 3, padding=1), nn.Tanh, nn.Flatten, dense(512, 10))
    found = run(drawn(*layers), digits(1), FeatureDecoding(steps=200))
    assert float(errors(found, digits(1)).max()) < 0.2
    two = run(drawn(*layers), digits(3), FeatureDecoding(steps=2))
    assert "only a batch of one" in two.status.reason
