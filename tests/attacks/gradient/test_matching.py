from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from planted_gradients import unit_batches
from torch import nn

from exhume.attacks.gradient.analytic import BiasRatio
from exhume.attacks.gradient.colours import recoloured
from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.matching import GradientMatching, infer_labels
from exhume.attacks.gradient.span import SpanAttack
from exhume.core.contract import ExhumeError, Gradient, Knowledge, NotApplicable, Outcome, Weights
from exhume.core.errors import OutOfTime
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.models.own import ModuleArchitecture
from exhume.models.two_layer import TwoLayer
from exhume.readers.payload import batch_statistics
from exhume.score.batches import score_batches
from exhume.store.shards import NullStore
from exhume.train.local import LocalTraining
from exhume.victims.gradient import release_batches

SMALL = MLP((1, 5, 5), (30,), 4, "tanh")


def run(attack, architecture, batches, key, parameters=None, **known):
    parameters = architecture.initial(key) if parameters is None else parameters
    release, secret = release_batches(architecture, parameters, batches)
    knowledge = Knowledge(architecture=architecture, **known)
    return attack.prepare(knowledge, key=key, store=NullStore()).run(release), secret


def test_matching_finds_a_small_batch(key):
    batches = unit_batches(1, 2, (1, 5, 5), 4, key)
    attack = GradientMatching(steps=150, rate=0.05, restarts=2)
    found, secret = run(attack, SMALL, batches, key, batch_size=2)
    metrics = score_batches(secret, found).metrics()
    assert metrics["min_cosine"] > 0.95
    assert metrics["label_accuracy"] == 1


def test_matching_any_module_and_labels_searched_for(key):
    cnn = CNN((1, 6, 6), (2,), (3,), (1,), (8,), 3)
    batches = unit_batches(1, 1, (1, 6, 6), 3, key)
    few, many = (GradientMatching(steps=n, restarts=2, rate=0.05) for n in (1, 60))
    first, _ = run(few, cnn, batches, key, batch_size=1)
    later, _ = run(many, cnn, batches, key, batch_size=1)
    assert later.observed["mismatch"] < 0.5 * first.observed["mismatch"]
    plain = TwoLayer((1, 5, 5), 40, 3, "tanh")  # no bias to read labels from
    found, _ = run(
        GradientMatching(steps=30),
        plain,
        batches=unit_batches(1, 2, (1, 5, 5), 3, key),
        key=key,
        batch_size=2,
    )
    assert found.labels.shape == (1, 2)


def test_matching_goes_on_from_another_attack(key):
    network = TwoLayer((1, 5, 5), 800, 1, "tanh")
    batches = unit_batches(1, 3, (1, 5, 5), 2, key)
    start = SpanAttack()
    attack = GradientMatching(start=start, steps=3, rate=1e-6)
    parameters = start.query(network, key)
    found, secret = run(attack, network, batches, key, parameters)
    assert score_batches(secret, found).metrics()["min_cosine"] > 0.9999


def test_total_variation_smooths(key):
    batches = unit_batches(1, 1, (1, 5, 5), 4, key)
    rough, smooth = (
        run(GradientMatching(steps=40, variation=w, restarts=1), SMALL, batches, key, batch_size=1)[
            0
        ]
        for w in (0.0, 10.0)
    )

    def variation(found):
        return float((found.candidates[..., 1:] - found.candidates[..., :-1]).abs().mean())

    assert variation(smooth) < 0.5 * variation(rough)


def test_labels_are_counted(key):
    batches = unit_batches(1, 6, (1, 5, 5), 4, key)
    batches.labels.copy_(torch.tensor([[3, 0, 0, 3, 3, 1]]))
    parameters = 0.1 * SMALL.initial(key)
    release, _ = release_batches(SMALL, parameters, batches)
    assert infer_labels(release.values[0], parameters, SMALL, 6).tolist() == [0, 0, 1, 3, 3, 3]
    one = MLP((1, 5, 5), (10,), 1, "tanh")
    batches.labels.copy_(torch.tensor([[1, 0, 0, 1, 1, 1]]))
    release, _ = release_batches(one, 0.1 * one.initial(key), batches)
    assert (
        infer_labels(release.values[0], 0.1 * one.initial(key), one, 6).tolist()
        == [0] * 2 + [1] * 4
    )


def test_matching_refusals(key):
    with pytest.raises(ExhumeError, match="steps, restarts: must be at least 1, got 0, 4"):
        GradientMatching(steps=0)
    with pytest.raises(NotApplicable, match="needs the batch size"):
        GradientMatching().prepare(Knowledge(architecture=SMALL), key=key, store=NullStore())
    known = Knowledge(architecture=SMALL, batch_size=2)
    weights = Weights(torch.zeros(1, SMALL.layout.size), SMALL.layout)
    for attack in (GradientMatching(), BiasRatio()):
        found = attack.prepare(known, key=key, store=NullStore()).run(weights)
        assert "not weights" in found.status.reason
    network = TwoLayer((1, 5, 5), 200, 1, "tanh")
    start = SpanAttack()
    prepared = GradientMatching(start=start).prepare(
        Knowledge(architecture=network), key=key, store=NullStore()
    )
    noise = torch.randn(1, network.layout.size, generator=key.generator())
    with pytest.raises(ExhumeError, match="the start found no record, and no batch size"):
        prepared.run(Gradient(noise, network.layout, start.query(network, key)))


def test_bias_ratio_gives_a_single_record_exactly(key):
    batches = unit_batches(3, 1, (1, 5, 5), 4, key)
    found, secret = run(BiasRatio(), MLP((1, 5, 5), (30, 10), 4, "relu"), batches, key)
    assert score_batches(secret, found).metrics()["psnr"] > 60


def test_bias_ratio_gives_records_that_stand_alone(key):
    """Neurons that fire for one record only, planted through the biases."""
    network = MLP((12,), (60,), 2, "relu")
    batches = unit_batches(1, 4, (12,), 2, key)
    named = {n: t.clone() for n, t in network.layout.split(network.initial(key)).items()}
    heights = batches.inputs[0] @ named["fc1.weight"].T
    top = heights.sort(0).values[-2:]
    named["fc1.bias"] = -top.mean(0)
    found, secret = run(BiasRatio(), network, batches, key, network.layout.join(named))
    scores = score_batches(secret, found)
    assert float(scores.cosines.max()) > 1 - 1e-6
    assert (scores.cosines > 1 - 1e-6).sum() == scores.sizes[0]


def test_bias_ratio_refuses_and_finds_nothing_where_records_share_neurons(key):
    network = TwoLayer((5,), 4, 1, "relu")
    with pytest.raises(NotApplicable, match="not fully connected with a bias"):
        BiasRatio().prepare(Knowledge(architecture=network), key=key, store=NullStore())
    found, _ = run(BiasRatio(), SMALL, unit_batches(1, 3, (1, 5, 5), 4, key), key)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert "no two neurons agree" in found.status.reason


CONVOLUTIONS = CNN((1, 8, 8), (4,), (3,), (1,), (16,), 4, "relu")


def test_restarts_of_convolutions_run_in_turn_to_the_same_end(key):
    """Side by side or in turn: two restarts end where each ends alone, the better of them."""
    batches = unit_batches(1, 1, (1, 8, 8), 4, key)
    both, _ = run(GradientMatching(steps=8, restarts=2), CONVOLUTIONS, batches, key, batch_size=1)
    first, _ = run(GradientMatching(steps=8, restarts=1), CONVOLUTIONS, batches, key, batch_size=1)
    assert both.observed["mismatch"] <= first.observed["mismatch"] + 1e-6


def test_signs_and_a_falling_variation_find_an_image(key):
    batches = unit_batches(1, 1, (1, 8, 8), 4, key)
    start, end = (
        run(
            GradientMatching(steps=n, restarts=1, signed=True, variation=0.1, falls=1e-3),
            CONVOLUTIONS,
            batches,
            key,
            batch_size=1,
        )
        for n in (1, 120)
    )
    before, after = (score_batches(one[1], one[0]).metrics()["psnr"] for one in (start, end))
    assert after > before + 5


def test_a_polish_never_makes_the_mismatch_larger(key):
    batches = unit_batches(1, 2, (1, 5, 5), 4, key)
    rough, fine = (
        run(GradientMatching(steps=30, restarts=1, polish=n), SMALL, batches, key, batch_size=2)[0]
        for n in (0, 30)
    )
    assert fine.observed["mismatch"] < 0.5 * rough.observed["mismatch"]


@pytest.fixture
def normed(key):
    """Two records behind batch norm in train mode: without and with what it saw of them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(8 * 36, 60), nn.ReLU(), nn.Linear(60, 4)),
        ).train()
    network = ModuleArchitecture.of(module, (1, 6, 6), "train")
    drawn = unit_batches(1, 2, (1, 6, 6), 4, key)
    batches = replace(drawn, inputs=drawn.inputs / drawn.inputs.max())
    plain, secret = release_batches(network, network.initial(key), batches)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    module(batches.inputs[0])
    seen = batch_statistics(before, module.state_dict(), module)
    assert set(seen) == {"1.mean", "1.var"}
    told = replace(plain, statistics={name: values[None] for name, values in seen.items()})
    return network, plain, told, secret


@pytest.mark.parametrize(
    "attack",
    [
        GradientMatching(steps=60, restarts=1, rate=0.05, statistics=1.0),
        FeatureDecoding(steps=150),
    ],
)
def test_batch_norm_statistics_are_used(attack, normed, key):
    """With the statistics that the client sends back the search ends nearer, whatever its rate."""
    network, plain, told, secret = normed
    step = LocalTraining(network, rate=0.3)
    ends = [
        score_batches(
            secret,
            attack.prepare(
                Knowledge(architecture=network, batch_size=2, local=local),
                key=key,
                store=NullStore(),
            ).run(release),
        ).metrics()["psnr"]
        for release, local in ((plain, None), (told, None), (told, step))
    ]
    assert min(ends[1:]) > ends[0] + 2


def test_colours_follow_from_what_batch_norm_saw(normed):
    network, _, told, secret = normed
    module, named = network.build(), network.layout.split(told.at)
    wanted = {name: values[0] for name, values in told.statistics.items()}
    truth = secret.open().inputs[0]
    found = recoloured(module, named, 0.4 * truth + 0.2, wanted)
    torch.testing.assert_close(found, truth, atol=1e-2, rtol=0)
    assert recoloured(module, named, truth, {}) is truth


@pytest.mark.parametrize("attack", [GradientMatching(steps=400, restarts=1), FeatureDecoding()])
def test_a_search_whose_time_is_over_ends_with_what_it_has(attack, normed, key):
    network, plain, _, _ = normed
    done = []

    def progress(stage, step, total):
        done.append(step)
        if stage in {"searching", "decoding features"} and total > 1 and 30 <= step < total:
            raise OutOfTime("the budget ended")

    known = Knowledge(architecture=network, batch_size=2)
    prepared = attack.prepare(known, key=key, store=NullStore(), progress=progress)
    found = prepared.run(plain)
    assert len(found.found()) == 2
    assert found.status.outcome is Outcome.STOPPED_EARLY
    assert len(done) < 20
