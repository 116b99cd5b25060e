from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume import readers
from exhume.attacks.informed.linearisations import without_gradient
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.core.contract import Key, Knowledge, Weights
from exhume.models.mlp import MLP
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each

RECIPE = FullBatch(MLP((1, 8, 8), (10,), 10), Descent(steps=15, momentum=0.9))
TARGETS = 3


@pytest.fixture(scope="module")
def game():
    """Fine-tuning: some records have been learned before they are seen, others have not."""
    key = Key.from_seed(2)
    parts = readers.split(readers.load("digits"), Sizes(300, TARGETS, 300, 0, 0), key)
    first = RECIPE.architecture.initial(key)
    longer = replace(RECIPE, descent=Descent(steps=200, momentum=0.9))
    initial = longer.fit(first, parts.shadow, parts.shadow.none_for(1), key)[0]
    release, secret = release_one_each(
        RECIPE, initial, parts.fixed, parts.target, key=key, store=NullStore(), chunk=8
    )
    knowledge = Knowledge(recipe=RECIPE, initial=initial, fixed=parts.fixed)
    fitted = ThroughTraining().prepare(knowledge, key=Key.from_seed(1), store=NullStore())
    return fitted, release.parameters, secret.open()


def asked_of(adjoint, released):
    return adjoint.ask(released - adjoint.free.end)


def test_the_record_explains_the_answers_and_others_do_not(game):
    fitted, released, truth = game
    (adjoint,) = fitted.linearisations
    free = adjoint.free
    other = truth.inputs.roll(1, 0)
    for one, mine, stranger in zip(released, truth.inputs, other, strict=True):
        wanted = free.records * asked_of(adjoint, one).double()
        lefts = [float(free.explain(z.flatten(), wanted)[2].norm()) for z in (mine, stranger)]
        assert lefts[0] < 0.2 * lefts[1]


def test_records_and_labels_are_found_without_training_a_model(game, monkeypatch):
    fitted, released, truth = game
    ranked = [fitted.starts.ranked(one, 1) for one in released[:2]]

    def trained(*_given, **_more):
        raise AssertionError("a model was trained")

    monkeypatch.setattr("exhume.attacks.informed.linearisations.trajectories", trained)
    for i, one in enumerate(released[:2]):
        begun = fitted.linearisations[0].begin(one, ranked[i], 10)
        assert begun.left < 0.1
        assert int(begun.labels) == int(truth.labels[i])
        assert float((begun.inputs[0] - truth.inputs[i]).square().mean()) < 1e-3


def test_the_influence_of_these_records_differs_by_an_order_of_magnitude(game):
    """Else the test above would show nothing that a search from the mean record could not do."""
    fitted, released, _ = game
    apart = (released - fitted.linearisations[0].free.end).norm(dim=1)
    assert float(apart.max()) > 10 * float(apart.min())


def test_fine_tuning_gives_the_records_back(game):
    fitted, released, truth = game
    found = fitted.run(Weights(released[2:], RECIPE.architecture.layout))
    errors = (found.candidates[:, 0] - truth.inputs[2:]).square().flatten(1).mean(1)
    assert float(errors.max()) < 1e-6
    assert torch.equal(found.labels[:, 0], truth.labels[2:])


def test_training_with_a_record_that_has_no_gradient_is_where_the_answers_begin(game):
    """n of n + 1 records, weight decay as it was."""
    descent = Descent(steps=7, rate=0.3, momentum=0.5, weight_decay=0.01)
    changed = without_gradient(descent, 4)
    assert changed.rate == pytest.approx(0.24)
    assert changed.rate * changed.weight_decay == pytest.approx(0.3 * 0.01)
    assert replace(changed, rate=0.3, weight_decay=0.01) == descent
