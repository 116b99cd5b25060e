"""Naming the record among candidates: near what is possible, never above it, and blind where it must be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from exhume import readers
from exhume.attacks.informed.prior_aware import PriorAware
from exhume.bounds.dp_sgd import dp_sgd, gaussian
from exhume.bounds.prior import certify
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Knowledge,
    NotApplicable,
    Outcome,
    Weights,
)
from exhume.models.mlp import MLP
from exhume.readers import Sizes
from exhume.score.targets import named_rightly
from exhume.store.shards import NullStore
from exhume.train.dp import Privacy
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import Order
from exhume.victims.informed import first_of, release_one_each, release_trails

COUNT, STEPS, CLIP = 8, 12, 0.5


def game(key, shift: float, trials: int, rate: float = 1.0):
    """Trainings on every candidate equally often; shift: sqrt(T) / sigma, 0 for no noise; rate: of draws."""
    parts = readers.split(readers.load("digits"), Sizes(30, COUNT, 0, 0, 0), key)
    noise = math.sqrt(STEPS) / shift if shift else 0.0
    recipe = FullBatch(
        MLP((1, 8, 8), (6,), 10), Descent(STEPS, 0.1, 0.5), Privacy(CLIP, noise, rate)
    )
    initial = recipe.architecture.initial(key)
    turns = torch.arange(trials) % COUNT
    release, secret = release_trails(
        recipe, initial, parts.fixed, parts.target[turns], key=key.fold("trials")
    )
    known = Knowledge(recipe=recipe, initial=initial, fixed=parts.fixed, candidates=parts.target)
    return known, release, secret


def attacked(known, release, key, **settings):
    return PriorAware(**settings).prepare(known, key=key, store=NullStore()).run(release)


def ends(release: Weights) -> Weights:
    return Weights(release.parameters, release.layout)


def test_every_step_comes_near_the_bound_and_never_exceeds_it(key):
    trials, shift = 320, 2.0
    known, release, secret = game(key, shift, trials)
    found = attacked(known, release, key)
    right = named_rightly(secret, found, known.candidates)
    bound = gaussian(1 / COUNT, math.sqrt(STEPS) / shift, STEPS)
    assert not certify(int(right.sum()), trials, kappa=1 / COUNT, bound=bound).alarm
    assert right.double().mean() > 0.7 * bound
    assert found.observed == {"candidates": COUNT, "saw_every_step": 1.0}
    # the likelihoods are exact, so the posterior is as often right as it says
    spread = math.sqrt(0.25 / trials)
    assert abs(float(found.confidence.mean() - right.double().mean())) < 4 * spread


def test_the_end_alone_says_less_but_something(key):
    trials = 320
    known, release, secret = game(key, 3.0, trials)
    every = named_rightly(secret, attacked(known, release, key), known.candidates).sum()
    last = named_rightly(secret, attacked(known, ends(release), key), known.candidates).sum()
    assert trials / COUNT + 4 * math.sqrt(trials / COUNT) < last < every


def test_without_noise_every_record_is_named(key):
    known, release, secret = game(key, 0.0, COUNT)
    for seen in (release, ends(release)):
        assert bool(named_rightly(secret, attacked(known, seen, key), known.candidates).all())


def test_drowned_in_noise_it_guesses(key):
    trials = 400
    known, release, secret = game(key, 0.02, trials)
    found = attacked(known, release, key)
    right = named_rightly(secret, found, known.candidates).double().mean()
    assert abs(float(right) - 1 / COUNT) < 4 * math.sqrt(1 / COUNT / trials)
    assert found.confidence.max() < 2 / COUNT


def test_the_trail_is_of_the_same_models(key):
    known, release, _ = game(key, 1.0, 5)
    again, secret = release_one_each(
        known.recipe,
        known.initial,
        known.fixed,
        known.candidates[:5],
        key=key.fold("trials"),
        store=NullStore(),
        chunk=64,
    )
    torch.testing.assert_close(again.parameters, release.parameters)
    assert release.trail.shape == (5, STEPS, release.parameters.shape[1])
    assert torch.equal(release.trail[:, 0], known.initial.expand(5, -1))
    few, _ = first_of((release, secret), 2)
    assert torch.equal(few.trail, release.trail[:2])


def test_what_it_does_not_apply_to(key):
    known, release, _ = game(key, 1.0, 2)
    adam = replace(known, recipe=replace(known.recipe, descent=Adam(STEPS)))
    found = attacked(adam, release, key)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert "cannot be undone, those of gradient descent can" in found.status.reason
    batches = MiniBatch(known.recipe.architecture, Descent(), Order(4, key))
    with pytest.raises(NotApplicable, match="recipe: full-batch training is needed, not batches"):
        attacked(replace(known, recipe=batches), release, key)
    with pytest.raises(NotApplicable, match="attack needs to know: candidates"):
        attacked(replace(known, candidates=None), release, key)
    gradient = Gradient(release.parameters, release.layout, known.initial)
    assert "not gradients or features" in attacked(known, gradient, key).status.reason


def test_refusals(key):
    with pytest.raises(ExhumeError, match="draws: 1 given, at least 2 needed"):
        PriorAware(draws=1)
    known, release, _ = game(key, 1.0, 2)
    with pytest.raises(ExhumeError, match="release: 3 parameters, the candidates' models have"):
        attacked(known, Weights(torch.zeros(1, 3), release.layout), key)


def test_where_steps_draw_their_records_it_comes_near_the_lower_bound(key):
    trials, noise, rate = 320, 0.6, 0.3
    known, release, secret = game(key, math.sqrt(STEPS) / noise, trials, rate)
    assert release.drawn.shape == (trials, STEPS, len(known.fixed))  # of the known records only
    found = attacked(known, release, key)
    right = named_rightly(secret, found, known.candidates)
    bound = dp_sgd(1 / COUNT, noise, STEPS, rate).gamma
    assert not certify(int(right.sum()), trials, kappa=1 / COUNT, bound=bound).alarm
    assert right.double().mean() > 0.7 * bound
    # the likelihoods are exact, the hidden draws included
    spread = math.sqrt(0.25 / trials)
    assert abs(float(found.confidence.mean() - right.double().mean())) < 4 * spread
    hidden = attacked(known, replace(release, drawn=None), key)
    blind = named_rightly(secret, hidden, known.candidates)
    assert trials / COUNT + 4 * math.sqrt(trials / COUNT) < blind.sum() < right.sum()
    few, _ = first_of((release, secret), 2)
    assert torch.equal(few.drawn, release.drawn[:2])
