"""What every defence of a release must satisfy. A new one is a new row in DEFENCES."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from exhume.core.contract import Activations, ExhumeError, NotApplicable, ReleaseDefence, Weights
from exhume.defences.rounding import Rounding
from exhume.models.mlp import MLP
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch


@dataclass(frozen=True)
class Row:
    none: ReleaseDefence
    weak: ReleaseDefence
    strong: ReleaseDefence


DEFENCES = {
    "half precision": Row(Rounding(), Rounding("fp16"), Rounding("bf16")),
    "integers": Row(Rounding(), Rounding("fp16"), Rounding("int8")),
}


@pytest.fixture(params=DEFENCES)
def row(request):
    return DEFENCES[request.param]


@pytest.fixture
def release(key):
    mlp = MLP((4, 4), (5,), 3)
    models = [mlp.initial(key.fold(i)) + 0.01 for i in range(6)]
    return Weights(torch.stack(models), mlp.layout)


def test_strength_zero_is_the_identity(row, release, key):
    assert row.none.strength == 0
    assert torch.equal(row.none.protect(release, key).parameters, release.parameters)


def test_a_stronger_defence_moves_the_release_further(row, release, key):
    assert 0 < row.weak.strength < row.strong.strength
    weak, strong = (
        (defence.protect(release, key).parameters - release.parameters).norm()
        for defence in (row.weak, row.strong)
    )
    assert 0 < float(weak) < float(strong)


def test_it_is_a_frozen_value_that_keeps_shape_and_type(row, release, key):
    assert isinstance(row.weak, ReleaseDefence)
    assert row.weak.__dataclass_params__.frozen
    assert dataclasses.is_dataclass(row.weak)
    safer = row.strong.protect(release, key)
    assert safer.layout == release.layout
    assert safer.parameters.dtype == release.parameters.dtype
    assert safer.parameters.shape == release.parameters.shape


def test_docstring_says_what_it_sees_and_assumes(row):
    for heading in ("Sees:", "Assumes:", "Guarantees:", "Reference:"):
        assert heading in (type(row.weak).__doc__ or "")


def test_models_are_protected_one_by_one(row, release, key):
    one = Weights(release.parameters[2:3], release.layout)
    together = row.strong.protect(release, key).parameters[2:3]
    assert torch.equal(row.strong.protect(one, key).parameters, together)


# Rounding


def test_integers_are_multiples_of_a_127th_of_each_tensors_largest_value(release, key):
    safer = Rounding("int8").protect(release, key)
    for name, values in safer.layout.split(safer.parameters).items():
        largest = release.layout.split(release.parameters)[name].abs().flatten(1).amax(1)
        steps = values.flatten(1) / (largest / 127)[:, None]
        torch.testing.assert_close(steps, steps.round(), atol=1e-3, rtol=0)
        assert float(steps.abs().max()) <= 127.001


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_relative_error_is_what_the_strength_says(name, release, key):
    defence = Rounding(name)
    error = (defence.protect(release, key).parameters - release.parameters).abs()
    assert bool((error <= defence.strength * release.parameters.abs() + 1e-7).all())


def test_a_rounded_recipe_trains_what_a_rounded_release_shows(make_records, key):
    recipe = FullBatch(MLP((6,), (4,), 3), Descent(steps=5))
    fixed, extra = make_records(20, (6,), 3, key), make_records(3, (6,), 3, key.fold("e"))
    initial = recipe.architecture.initial(key)
    defence = Rounding("int8")
    plain = Weights(recipe.fit(initial, fixed, extra.one_each(), key), recipe.architecture.layout)
    rounded = defence.harden(recipe).fit(initial, fixed, extra.one_each(), key)
    assert torch.equal(rounded, defence.protect(plain, key).parameters)
    assert Rounding().harden(recipe) is recipe
    assert str(defence.harden(recipe)).endswith("rounded to int8")


def test_what_cannot_be_rounded_is_said(key):
    with pytest.raises(ExhumeError, match="format: 'int3' is not one of fp32, fp16, bf16, int8"):
        Rounding("int3")
    with pytest.raises(NotApplicable, match="for weights, not yet for activations"):
        Rounding("int8").protect(Activations(torch.zeros(1, 2), "cut"), key)
