from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume import readers
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.noise_aware import NoiseAware, _Label
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Weights,
)
from exhume.models.mlp import MLP
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.train.dp import Privacy
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each


@pytest.fixture(scope="module")
def game():
    key = Key.from_seed(0)
    parts = readers.split(readers.load("digits"), Sizes(60, 80, 250, 1, 1), key)
    recipe = FullBatch(MLP((1, 8, 8), (8,), 10), Descent(steps=25), Privacy(10.0, 0.02))
    initial = recipe.architecture.initial(key)
    release, secret = release_one_each(
        recipe, initial, parts.fixed, parts.target, key=key, store=NullStore(), chunk=64
    )
    knowledge = Knowledge(recipe=recipe, initial=initial, fixed=parts.fixed, shadow=parts.shadow)
    fitted = NoiseAware().prepare(knowledge, key=key, store=NullStore())
    return knowledge, fitted, release, secret.open()


def test_it_sees_through_noise_that_hides_records_from_noisy_shadows(game, key):
    knowledge, fitted, release, truth = game
    plain = ClosedForm().prepare(knowledge, key=key, store=NullStore())

    def error(found):
        return (found.candidates[:, 0] - truth.inputs).square().mean().item()

    mean = (knowledge.shadow.inputs.mean(0) - truth.inputs).square().mean().item()
    ours, theirs = error(fitted.run(release)), error(plain.run(release))
    assert ours < 0.8 * theirs
    assert ours < 0.8 * mean


def test_its_own_estimate_of_its_error_is_on_the_safe_side(game):
    """It comes from half of the shadows."""
    _, fitted, release, truth = game
    found = fitted.run(release)
    error = (found.candidates[:, 0] - truth.inputs).square().mean().item()
    assert error < found.observed["mse_on_shadows"] < 3 * error
    right = (found.labels[:, 0] == truth.labels).double().mean().item()
    assert found.observed["label_accuracy_on_shadows"] == pytest.approx(right, abs=0.2)
    assert found.cost.models == 501


def test_noise_that_drowns_everything_leaves_about_the_mean_record(game, key):
    knowledge, _, _, truth = game
    drowned = replace(knowledge.recipe, privacy=Privacy(10.0, 50.0))
    release, _ = release_one_each(
        drowned, knowledge.initial, knowledge.fixed, truth, key=key, store=NullStore(), chunk=64
    )
    fitted = NoiseAware().prepare(replace(knowledge, recipe=drowned), key=key, store=NullStore())
    error = (fitted.run(release).candidates[:, 0] - truth.inputs).square().mean().item()
    mean = (knowledge.shadow.inputs.mean(0) - truth.inputs).square().mean().item()
    assert error == pytest.approx(mean, rel=0.1)


def test_a_label_is_a_gaussian_with_its_sample_covariance_and_the_noise(key):
    generator = key.generator()
    changes, records = (torch.randn(6, d, generator=generator).double() for d in (4, 3))
    asked = torch.randn(5, 4, generator=generator).double()
    factor = 0.7
    found, likely = _Label.of(changes, records).apply(asked, factor)
    a, z = changes - changes.mean(0), records - records.mean(0)
    covariance = a.T @ a / 6 + factor * torch.eye(4).double()
    left = asked - changes.mean(0)
    naive = left @ torch.linalg.inv(covariance) @ (a.T @ z / 6) + records.mean(0)
    torch.testing.assert_close(found, naive)
    normal = torch.distributions.MultivariateNormal(changes.mean(0), covariance)
    difference = normal.log_prob(asked) - likely
    torch.testing.assert_close(difference, difference[0].expand(5))  # up to a constant


def test_what_it_cannot_do_is_named(game, key):
    knowledge, fitted, release, _ = game
    quiet = replace(knowledge, recipe=replace(knowledge.recipe, privacy=Privacy(10.0)))
    with pytest.raises(NotApplicable, match="recipe: it adds no noise"):
        NoiseAware().prepare(quiet, key=key, store=NullStore())
    few = replace(knowledge, shadow=knowledge.shadow[:8])
    few.shadow.labels[:] = torch.arange(8)
    with pytest.raises(NotApplicable, match="no label has 4 records"):
        NoiseAware().prepare(few, key=key, store=NullStore())
    gradient = Gradient(release.parameters, release.layout, release.parameters[0])
    assert fitted.run(gradient).status.outcome is Outcome.NOT_APPLICABLE
    with pytest.raises(ExhumeError, match="release: 3 parameters, the shadow models have"):
        fitted.run(Weights(release.parameters[:, :3], release.layout))
