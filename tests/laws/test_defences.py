"""What every defence must satisfy. A new defence is a new row in DEFENCES."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from exhume.contract import ExhumeError, NotApplicable, TrainingDefence
from exhume.defences.dp import DPTraining
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.train.batches import Order
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch, MiniBatch


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
