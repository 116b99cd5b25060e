from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume import readers
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Records,
    Weights,
)
from exhume.models.mlp import MLP
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each


@pytest.fixture(scope="module")
def game():
    key = Key.from_seed(0)
    parts = readers.split(readers.load("digits"), Sizes(100, 60, 400, 0, 0), key)
    recipe = FullBatch(MLP((1, 8, 8), (10,), 10), Descent(steps=40))
    initial = recipe.architecture.initial(key)
    release, secret = release_one_each(
        recipe, initial, parts.fixed, parts.target, key=key, store=NullStore(), chunk=64
    )
    knowledge = Knowledge(recipe=recipe, initial=initial, fixed=parts.fixed, shadow=parts.shadow)
    fitted = ClosedForm().prepare(knowledge, key=key, store=NullStore())
    return knowledge, fitted, release, secret


def test_it_recovers_digits_far_better_than_the_mean(game):
    knowledge, fitted, release, secret = game
    truth = secret.open()
    found = fitted.run(release)
    error = (found.candidates[:, 0] - truth.inputs).square().mean()
    mean = (knowledge.shadow.inputs.mean(0) - truth.inputs).square().mean()
    assert error < 0.3 * mean
    assert (found.labels[:, 0] == truth.labels).double().mean() > 0.85
    assert found.status.outcome is Outcome.CONVERGED
    assert found.cost.models == 401


def test_its_confidence_tells_good_from_bad(game):
    _, fitted, release, secret = game
    found = fitted.run(release)
    errors = (found.candidates[:, 0] - secret.open().inputs).square().flatten(1).mean(1).double()
    sure = found.confidence[:, 0].argsort(descending=True)
    assert errors[sure[:20]].mean() < errors[sure[-20:]].mean()


def test_its_own_estimate_of_its_error_is_about_right(game):
    _, fitted, release, secret = game
    found = fitted.run(release)
    error = (found.candidates[:, 0] - secret.open().inputs).square().mean().item()
    assert found.observed["mse_on_shadows"] == pytest.approx(error, rel=0.5)


def test_what_it_needs_to_know_is_named(game, key):
    knowledge = game[0]
    with pytest.raises(NotApplicable, match="needs to know: initial, fixed, shadow") as why:
        ClosedForm().prepare(Knowledge(recipe=knowledge.recipe), key=key, store=NullStore())
    assert why.value.ever


def test_other_releases_are_refused(game):
    _, fitted, release, _ = game
    gradient = Gradient(release.parameters, release.layout, release.parameters[0])
    assert fitted.run(gradient).status.outcome is Outcome.NOT_APPLICABLE
    other = MLP((1, 8, 8), (11,), 10)
    with pytest.raises(ExhumeError, match="release: .* parameters, the shadow models have 760"):
        fitted.run(Weights(torch.zeros(1, other.layout.size), other.layout))


def test_a_label_without_shadows_is_never_inferred(game, key):
    knowledge, _, release, _ = game
    shadow = knowledge.shadow[knowledge.shadow.labels != 3][:120]
    fewer = Knowledge(
        recipe=knowledge.recipe, initial=knowledge.initial, fixed=knowledge.fixed, shadow=shadow
    )
    found = ClosedForm().prepare(fewer, key=key, store=NullStore()).run(release)
    assert not (found.labels == 3).any()
    threes = knowledge.shadow[knowledge.shadow.labels == 3][:2]  # two make a regression
    few = replace(fewer, shadow=Records.joined([shadow, threes]))
    assert 3 in ClosedForm().prepare(few, key=key, store=NullStore()).fitted.regressions
    with pytest.raises(NotApplicable, match="at least 2 needed"):
        ClosedForm().prepare(
            Knowledge(
                recipe=knowledge.recipe,
                initial=knowledge.initial,
                fixed=knowledge.fixed,
                shadow=shadow[:1],
            ),
            key=key,
            store=NullStore(),
        )
