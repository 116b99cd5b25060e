"""The missing row of a linear or ridge regression: every row of the diabetes table, to a millionth."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, Ridge

from exhume.attacks.informed.glm import LinearClosedForm
from exhume.core.contract import Knowledge, NotApplicable
from exhume.readers.fitted import records_of_fitted, release_of_fitted
from exhume.store.shards import NullStore
from exhume.train.glm import Penalty
from exhume.train.linear import LinearFit


def row_from(release, recipe, records, row, key):
    fixed = records[torch.arange(len(records)) != row]
    known = Knowledge(architecture=recipe.architecture, recipe=recipe, fixed=fixed)
    prepared = LinearClosedForm().prepare(known, key=key, store=NullStore())
    return prepared.run(release).candidates[0, 0]


@pytest.mark.parametrize("kind", [LinearRegression(), Ridge(alpha=1.0), Ridge(alpha=1e-3)])
@pytest.mark.parametrize("scaled", [True, False])
def test_every_row_of_diabetes_comes_back(kind, scaled, key):
    x, y = load_diabetes(return_X_y=True, scaled=scaled)
    records = records_of_fitted(kind.fit(x, y), x, y)
    release, recipe = release_of_fitted(kind, records.shape)
    found = torch.stack([row_from(release, recipe, records, i, key) for i in range(len(x))])
    spread = records.inputs.std(0)
    assert float(((found - records.inputs) / spread).abs().max()) < 1e-6
    assert records.shape == (11,)


def test_several_targets_at_once(key):
    x, _ = load_diabetes(return_X_y=True)
    both = x[:, :2]
    model = Ridge(alpha=0.5).fit(x[:, 2:], both)
    records = records_of_fitted(model, x[:, 2:], both)
    release, recipe = release_of_fitted(model, records.shape)
    assert recipe.architecture.outputs == 2
    found = row_from(release, recipe, records, 7, key)
    assert float((found - records.inputs[7]).abs().max()) < 1e-6


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_the_recipe_is_what_scikit_learn_fits(alpha, key):
    x, y = load_diabetes(return_X_y=True)
    model = (Ridge(alpha=alpha) if alpha else LinearRegression()).fit(x, y)
    records = records_of_fitted(model, x, y)
    release, recipe = release_of_fitted(model, records.shape)
    assert recipe.penalty == Penalty(alpha, averaged=False, bias=False)
    extra = records[-2:].one_each()
    fitted = recipe.fit(torch.zeros(11), records[:-1], extra[1:], key)
    torch.testing.assert_close(fitted, release.parameters, rtol=1e-8, atol=1e-8)
    assert isinstance(recipe, LinearFit)


@pytest.mark.parametrize(
    ("model", "outputs", "why"),
    [
        (Ridge(fit_intercept=False), 1, "without a bias"),
        (LinearRegression(positive=True), 1, "positive"),
        (Ridge(alpha=[1.0, 2.0]), 2, "one penalty"),
    ],
)
def test_what_is_no_plain_least_squares(model, outputs, why):
    x, y = load_diabetes(return_X_y=True)
    targets = y if outputs == 1 else x[:, :outputs]
    with pytest.raises(NotApplicable, match=why):
        release_of_fitted(model.fit(x, targets), (10 + outputs,))
