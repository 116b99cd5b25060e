from __future__ import annotations

import pytest
import torch

from exhume import data
from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.refining import Refined
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Records,
)
from exhume.data import Sizes
from exhume.models.mlp import MLP
from exhume.store.shards import NullStore
from exhume.train.recipe import FullBatch
from exhume.train.stacked import Descent
from exhume.victims.informed import release_one_each


@pytest.fixture(scope="module")
def game():
    key = Key.from_seed(0)
    parts = data.split(data.load("digits"), Sizes(100, 20, 200, 0, 0), key)
    recipe = FullBatch(MLP((1, 8, 8), (8,), 10), Descent(steps=30))
    initial = recipe.architecture.initial(key)
    release, _ = release_one_each(
        recipe, initial, parts.fixed, parts.target, key=key, store=NullStore(), chunk=32
    )
    known = Knowledge(recipe=recipe, initial=initial, fixed=parts.fixed, shadow=parts.shadow)
    return known, release


def distances(known, release, found, key):
    """Naive: train on every candidate by itself."""
    best = found.candidates[:, 0]
    trained = [
        known.recipe.fit(
            known.initial,
            known.fixed,
            Records(best[i : i + 1], found.labels[i], known.fixed.classes).one_each(),
            key,
        )[0]
        for i in range(len(best))
    ]
    return (torch.stack(trained) - release.parameters).double().norm(dim=1)


def test_a_refined_record_explains_the_release_at_least_as_well(game, key):
    known, release = game
    plain = ClosedForm(chunk=32).prepare(known, key=key, store=NullStore()).run(release)
    refined = Refined(ClosedForm(chunk=32)).prepare(known, key=key, store=NullStore()).run(release)
    before, after = (distances(known, release, found, key) for found in (plain, refined))
    assert bool((after <= before * (1 + 1e-5)).all())
    assert float(after.mean()) < 0.99 * float(before.mean())
    assert refined.observed["distance_after"] == pytest.approx(float(after.mean()), rel=1e-3)
    assert refined.cost.models == plain.cost.models + 4 * 20


def test_other_releases_and_attacks_without_labels_are_refused(game, key):
    known, release = game
    fitted = Refined(ClosedForm(chunk=32)).prepare(known, key=key, store=NullStore())
    gradient = Gradient(release.parameters, release.layout, release.parameters[0])
    assert fitted.run(gradient).status.outcome is Outcome.NOT_APPLICABLE
    mean = Refined(MeanRecord()).prepare(known, key=key, store=NullStore()).run(release)
    assert mean.status.outcome is Outcome.NOT_APPLICABLE
    assert "infers labels" in mean.status.reason


def test_what_is_wrong_is_named(key):
    with pytest.raises(ExhumeError, match="steps: 0 given, at least 1 needed"):
        Refined(steps=0)
    with pytest.raises(ExhumeError, match="damping: 2.0 given, legal is 0 < damping <= 1"):
        Refined(damping=2.0)
    with pytest.raises(NotApplicable, match="refining needs to know: recipe, initial, fixed"):
        Refined().prepare(Knowledge(), key=key, store=NullStore())
