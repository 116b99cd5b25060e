"""The record in the difference of two versions of a linear model."""

from __future__ import annotations

import pytest
import torch

from exhume.attacks.informed.versions import VersionDifference
from exhume.core.contract import Gradient, Key, Knowledge, NotApplicable, Records, Weights
from exhume.models.glm import softmax_regression
from exhume.models.mlp import MLP
from exhume.store.shards import NullStore
from exhume.train.glm import Optimum, Penalty
from exhume.train.linear import LinearFit
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

KEY = Key.from_seed(5)


def people(count, name):
    drawn = torch.randn(count, 6, generator=KEY.fold(name).generator(), dtype=torch.float64)
    drawn[:, 5] = drawn[:, :5].sum(1) + 0.3 * drawn[:, 5]
    return Records(drawn, (drawn[:, 5] > 0).long(), ("no", "yes"))


def versions(recipe, remaining, persons):
    """Fits with each of the persons, and one without any."""
    start = recipe.architecture.initial(KEY)
    within = recipe.fit(start, remaining, persons.one_each(), KEY)
    without = recipe.fit(start, remaining, remaining.none_for(1), KEY)
    layout = recipe.architecture.layout
    return Gradient(within - without, layout, without[0])


RECIPES = {
    "ridge": LinearFit(MLP((5,), (), 1), Penalty.of_sum(2.0)),
    "two targets": LinearFit(MLP((4,), (), 2), Penalty.of_sum(0.5)),
    "averaged": LinearFit(MLP((5,), (), 1), Penalty(0.01, averaged=True, bias=False)),
    "softmax": Optimum(softmax_regression((6,), 2), Penalty.of_sum(1.0)),
    "logistic": Optimum(MLP((6,), (), 1), Penalty.of_sum(1.0)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_who_knows_the_others_inputs_has_the_record(name):
    recipe, remaining, persons = RECIPES[name], people(80, "others"), people(6, "persons")
    release = versions(recipe, remaining, persons)
    if isinstance(recipe, Optimum):  # nobody needs their labels
        remaining = Records(remaining.inputs, 1 - remaining.labels, remaining.classes)
    known = Knowledge(recipe=recipe, fixed=remaining)
    found = VersionDifference().prepare(known, key=KEY, store=NullStore()).run(release)
    torch.testing.assert_close(found.candidates[:, 0], persons.inputs, atol=1e-6, rtol=0)
    if isinstance(recipe, Optimum):
        assert found.labels[:, 0].tolist() == persons.labels.tolist()


@pytest.mark.parametrize(("name", "named"), [("ridge", 0.8), ("logistic", 0.4)])
def test_people_like_them_are_enough_for_an_estimate(name, named):
    recipe, persons = RECIPES[name], people(20, "persons")
    release = versions(recipe, people(400, "others"), persons)
    known = Knowledge(recipe=recipe, public=people(2000, "public"))
    found = VersionDifference(400).prepare(known, key=KEY, store=NullStore()).run(release)
    apart = torch.cdist(found.candidates[:, 0], persons.inputs)
    assert (apart.argmin(1) == torch.arange(20)).double().mean() > named


def test_what_it_does_not_read():
    mlp = FullBatch(MLP((6,), (4,), 2), Descent(steps=1))
    for known in (
        Knowledge(recipe=mlp, fixed=people(9, "others")),
        Knowledge(recipe=RECIPES["ridge"]),
    ):
        with pytest.raises(NotApplicable):
            VersionDifference().prepare(known, key=KEY, store=NullStore())
    known = Knowledge(recipe=RECIPES["ridge"], fixed=people(9, "others"))
    ready = VersionDifference().prepare(known, key=KEY, store=NullStore())
    weights = Weights(torch.zeros(1, 6), RECIPES["ridge"].architecture.layout)
    assert not ready.run(weights).status.converged
