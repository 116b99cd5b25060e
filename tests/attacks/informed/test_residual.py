from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.residual import Residual
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Records,
)
from exhume.models.mlp import MLP
from exhume.models.reconstructors import Corrector
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each


def black_or_white(count, key):
    """Blots: values that a linear map blurs and a network need only sharpen."""
    noise = torch.randn(count, 1, 12, 12, generator=key.generator())
    blots = (torch.nn.functional.avg_pool2d(noise, 5, 1) > 0).float()
    return Records(blots, torch.arange(count) % 2, ("a", "b"))


@pytest.fixture(scope="module")
def game():
    key = Key.from_seed(0)
    fixed, target, shadow = (black_or_white(n, key.fold(n)) for n in (300, 60, 240))
    recipe = FullBatch(MLP((1, 8, 8), (8,), 2), Descent(steps=40))
    initial = recipe.architecture.initial(key)
    knowledge = Knowledge(recipe=recipe, initial=initial, fixed=fixed, shadow=shadow)
    release, secret = release_one_each(
        recipe, initial, fixed, target, key=key, store=NullStore(), chunk=32
    )
    return knowledge, release, secret


def run(attack, game, key):
    knowledge, release, _ = game
    return attack.prepare(knowledge, key=key, store=NullStore()).run(release)


@pytest.fixture(scope="module")
def plain(game):
    return run(ClosedForm(chunk=32, imprint=False), game, Key.from_seed(0))


def error(found, game):
    return float((found.candidates[:, 0] - game[2].open().inputs).square().mean())


def test_it_takes_errors_away_and_says_how_many(game, plain, key):
    corrected = run(
        Residual(training=Training("adam", 6e-3, batch=64, epochs=15), chunk=32), game, key
    )
    assert error(corrected, game) < 0.97 * error(plain, game)
    assert corrected.observed["epoch"] > 0
    assert 0.5 < corrected.observed["error_left"] < 0.99
    assert torch.equal(corrected.labels, plain.labels)


def test_untrained_it_is_the_closed_form(game, plain, key):
    same = run(Residual(training=Training("adam", 1e-3, epochs=0), chunk=32), game, key)
    torch.testing.assert_close(same.candidates, plain.candidates)
    assert same.observed["error_left"] == 1


def test_leave_one_out_drawings_are_those_of_a_fit_without_the_shadow(make_records, key):
    from exhume.attacks.informed.ridge import HeldRows, Sample, basis_of, regress

    records = make_records(12, (5,), 1, key)
    read = torch.randn(12, 4, generator=key.generator(), dtype=torch.float64)
    basis = basis_of(records)
    rows = records.inputs.double()
    whole = regress({0: Sample(HeldRows(read), rows)}, basis)[0][0]
    assert whole.held_out.shape == (12, 5)
    left = float((whole.held_out.double() - rows).square().mean())
    assert left == pytest.approx(whole.held_out_error, rel=1e-5)


@pytest.mark.parametrize("shape", [(3, 6, 5), (7,)])
def test_a_corrector_begins_as_the_identity_and_sees_the_label(shape, key):
    network = Corrector(channels=(4, 6), hidden=8).build(3, shape, key)
    size = torch.Size(shape).numel()
    features = torch.randn(2, size + 3, generator=key.generator())
    torch.testing.assert_close(network(features).flatten(1), features[:, :size])
    torch.nn.init.ones_(network.last.weight)
    other = features.clone()
    other[:, size:] += 1
    assert not torch.allclose(network(other), network(features))


def test_what_does_not_fit_is_said(game, key):
    knowledge, release, _ = game
    few = replace(knowledge, shadow=knowledge.shadow[:12])
    with pytest.raises(NotApplicable, match="records of labels that have two, 20 needed"):
        Residual(chunk=32).prepare(few, key=key, store=NullStore())
    with pytest.raises(ExhumeError, match="held_out: 1.0 given"):
        Residual(held_out=1.0)
    with pytest.raises(ExhumeError, match="sizes must be at least 1"):
        Corrector(channels=(4, 0))
    quick = Residual(training=Training("adam", 1e-3, epochs=0), chunk=32)
    prepared = quick.prepare(knowledge, key=key, store=NullStore())
    gradient = Gradient(release.parameters, release.layout, release.parameters[0])
    assert prepared.run(gradient).status.outcome is Outcome.NOT_APPLICABLE
