"""What every defence must satisfy. A new defence is a new row in DEFENCES."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from exhume.core.contract import (
    ExhumeError,
    Gradient,
    NotApplicable,
    ReleaseDefence,
    TrainingDefence,
    Weights,
)
from exhume.defences.dp import DPTraining
from exhume.defences.release import ClipRelease, NoiseRelease, PruneRelease, QuantiseRelease
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import Order


@dataclass(frozen=True)
class Row:
    none: TrainingDefence
    weak: TrainingDefence
    strong: TrainingDefence


DEFENCES = {
    "dp: clip": Row(DPTraining(), DPTraining(clip=1.0), DPTraining(clip=0.01)),
    "dp: noise": Row(
        DPTraining(),
        DPTraining(clip=1.0, noise_multiplier=0.1),
        DPTraining(clip=1.0, noise_multiplier=10.0),
    ),
}
RECIPES = {
    "mlp": FullBatch(MLP((1, 6, 6), (5,), 3), Descent(steps=6)),
    "cnn": FullBatch(CNN((1, 6, 6), (2,), (3,), (1,), (4,), 3), Descent(steps=6)),
}


@pytest.fixture(params=DEFENCES)
def row(request):
    return DEFENCES[request.param]


@pytest.fixture(params=RECIPES)
def recipe(request):
    return RECIPES[request.param]


@pytest.fixture
def fit(make_records, key):
    fixed = make_records(20, (1, 6, 6), 3, key)
    extra = make_records(3, (1, 6, 6), 3, key.fold("extra")).one_each()

    def run(recipe, key=key):
        return recipe.fit(recipe.architecture.initial(key.fold("start")), fixed, extra, key)

    return run


def test_strength_zero_is_the_identity(row, recipe, fit):
    assert row.none.strength == 0
    assert torch.equal(fit(row.none.harden(recipe)), fit(recipe))


def test_strength_changes_the_weights_and_grows(row, recipe, fit):
    assert 0 < row.weak.strength < row.strong.strength
    plain = fit(recipe)
    for defence in (row.weak, row.strong):
        assert not torch.equal(fit(defence.harden(recipe)), plain)


def test_same_key_same_bits(row, recipe, fit):
    hardened = row.strong.harden(recipe)
    assert torch.equal(fit(hardened), fit(hardened))


def test_it_is_a_frozen_value_that_keeps_the_recipe(row, recipe):
    assert isinstance(row.weak, TrainingDefence)
    assert dataclasses.is_dataclass(row.weak)
    assert row.weak.__dataclass_params__.frozen
    hardened = row.weak.harden(recipe)
    assert hardened.architecture == recipe.architecture
    assert hardened.descent == recipe.descent
    assert str(hardened) != str(recipe)


def test_docstring_says_what_it_sees_and_assumes(row):
    for heading in ("Sees:", "Assumes:", "Guarantees:", "Reference:"):
        assert heading in (type(row.weak).__doc__ or "")


def test_dp_is_refused_where_its_accounting_does_not_hold(key):
    recipe = MiniBatch(MLP((4,), (3,), 2), Descent(), Order(4, key))
    with pytest.raises(NotApplicable, match="not yet for: batches of 4"):
        DPTraining(clip=1.0).harden(recipe)
    assert DPTraining().harden(recipe) is recipe
    with pytest.raises(ExhumeError, match="without a clip"):
        DPTraining(noise_multiplier=1.0)


def test_dp_states_its_epsilon():
    assert DPTraining(10.0, 40.0).epsilon(100) == pytest.approx(0.9263, abs=1e-3)


# Defences of a release: no defence, a weak and a strong one
RELEASE_DEFENCES = {
    "noise": (NoiseRelease(), NoiseRelease(0.1), NoiseRelease(10.0)),
    "clip": (ClipRelease(), ClipRelease(0.5), ClipRelease(100.0)),
    "quantise": (QuantiseRelease(), QuantiseRelease(8), QuantiseRelease(1)),
    "prune": (PruneRelease(), PruneRelease(0.1), PruneRelease(0.99)),
}


@pytest.fixture(params=RELEASE_DEFENCES)
def release_row(request):
    return RELEASE_DEFENCES[request.param]


@pytest.fixture
def release(key):
    layout = MLP((6,), (5,), 3).layout
    values = 3 * torch.randn(2, layout.size, generator=key.generator())
    return Gradient(values, layout, torch.zeros(layout.size))


def test_release_defences(release_row, release, key):
    none, weak, strong = release_row
    assert none.strength == 0 < weak.strength < strong.strength
    assert torch.equal(none.protect(release, key).values, release.values)
    distances = []
    for defence in (weak, strong):
        assert isinstance(defence, ReleaseDefence)
        assert dataclasses.is_dataclass(defence)
        assert defence.__dataclass_params__.frozen
        safer = defence.protect(release, key)
        assert (safer.layout, safer.at is release.at) == (release.layout, True)
        assert torch.equal(safer.values, defence.protect(release, key).values)
        distances.append(float((safer.values - release.values).norm()))
    assert 0 < distances[0] < distances[1]
    with pytest.raises(NotApplicable, match="protects gradients, not Weights"):
        weak.protect(Weights(release.values, release.layout), key)
    for heading in ("Sees:", "Assumes:", "Guarantees:", "Reference:"):
        assert heading in (type(weak).__doc__ or "")


def test_release_defences_do_what_they_say(release, key):
    assert ClipRelease(0.5).protect(release, key).values.norm(dim=1).tolist() == pytest.approx(
        [2, 2]
    )
    pruned = release.layout.split(PruneRelease(0.5).protect(release, key).values)["fc1.weight"]
    assert int((pruned[0] == 0).sum()) == 15
    for bits, levels in ((2, 3), (4, 15)):
        part = release.layout.split(QuantiseRelease(bits).protect(release, key).values)
        assert len(part["fc1.weight"][0].unique()) <= levels
    signs = QuantiseRelease(1).protect(release, key).values
    assert torch.equal(signs.sign(), release.values.sign())
    noise = NoiseRelease(2.0).protect(release, key).values - release.values
    assert float(noise.std() / release.values.square().mean().sqrt()) == pytest.approx(2, rel=0.25)


def test_noise_on_one_layer_leaves_the_others(release, key):
    protected = NoiseRelease(2.0, ("fc2",)).protect(release, key).values
    before, after = (release.layout.split(values) for values in (release.values, protected))
    layers = {name: torch.equal(before[name], after[name]) for name in before}
    assert layers == {name: not name.startswith("fc2.") for name in before}
    with pytest.raises(ExhumeError, match="layers: fc7 not in this update; it has fc1, fc2"):
        NoiseRelease(1.0, ("fc7",)).protect(release, key)


def test_release_defences_refuse_nonsense():
    for make in (NoiseRelease, ClipRelease):
        with pytest.raises(ExhumeError, match="strength: must be at least 0, got -1.0"):
            make(-1.0)
    with pytest.raises(ExhumeError, match=r"strength: must lie in \[0, 1\), got 1.0"):
        PruneRelease(1.0)
    with pytest.raises(ExhumeError, match="bits: must be at least 1, got 0"):
        QuantiseRelease(0)
