from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import avg_pool2d

from exhume import readers
from exhume.attacks.informed.through_training import ThroughTraining
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
from exhume.store.shards import FolderStore, NullStore
from exhume.train.dp import Privacy
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each

RECIPE = FullBatch(MLP((1, 4, 4), (8,), 10), Descent(steps=20))
ATTACK = ThroughTraining(anchors=10)


@pytest.fixture(scope="module")
def game():
    """Three digits of 4x4, each behind a model of its own."""
    key, digits = Key.from_seed(0), readers.load("digits")
    small = replace(digits, inputs=avg_pool2d(digits.inputs, 2))
    parts = readers.split(small, Sizes(100, 3, 0, 0, 0), key)
    initial = RECIPE.architecture.initial(key)
    release, secret = release_one_each(
        RECIPE, initial, parts.fixed, parts.target, key=key, store=NullStore(), chunk=8
    )
    return Knowledge(recipe=RECIPE, initial=initial, fixed=parts.fixed), release, secret


@pytest.fixture(scope="module")
def found(game):
    knowledge, release, _ = game
    return ATTACK.prepare(knowledge, key=Key.from_seed(1), store=NullStore()).run(release)


def test_records_and_labels_come_back_exactly_without_any_data_of_its_own(game, found):
    truth = game[2].open()
    errors = (found.candidates[:, 0] - truth.inputs).abs().flatten(1).amax(1)
    assert torch.equal(found.labels[:, 0], truth.labels)
    assert float(errors.max()) < 1e-3
    assert found.status.outcome is Outcome.CONVERGED


def test_the_residual_certifies_the_answer(found):
    assert float(found.confidence.max()) <= 0
    assert float(found.confidence.min()) > -1e-2
    assert found.observed["explained"] == 1


def test_a_release_of_another_training_is_not_explained(game, key):
    knowledge, release, _ = game
    other = replace(RECIPE, descent=Descent(steps=20, rate=0.05))
    wrong = Knowledge(recipe=other, initial=knowledge.initial, fixed=knowledge.fixed)
    attack = replace(ATTACK, iterations=3, labels=1)
    part = Weights(release.parameters[:1], release.layout)
    missed = attack.prepare(wrong, key=key, store=NullStore()).run(part)
    assert missed.status.outcome is Outcome.STOPPED_EARLY
    assert float(missed.confidence.max()) < -0.1
    assert "0% of the releases are explained" in missed.status.reason


@pytest.mark.parametrize(
    ("recipe", "message", "ever"),
    [
        (FullBatch(MLP((1, 8, 8), (), 10)), "closed form of its own", True),
        (FullBatch(MLP((1, 8, 8), (10,), 10), Adam()), "written for plain descent", True),
        (FullBatch(MLP((1, 8, 8), (10,), 10), privacy=Privacy(1.0, 1.0)), "cannot redo", False),
    ],
)
def test_what_it_cannot_differentiate(game, key, recipe, message, ever):
    knowledge = replace(game[0], recipe=recipe)
    with pytest.raises(NotApplicable, match=message) as why:
        ThroughTraining().prepare(knowledge, key=key, store=NullStore())
    assert why.value.ever is ever


def test_memory_is_refused_before_it_is_taken(game, key):
    knowledge = replace(
        game[0], recipe=FullBatch(MLP((1, 8, 8), (5000,), 10)), initial=torch.zeros(1)
    )
    with pytest.raises(NotApplicable, match="takes 2,812 MiB, 100 are allowed"):
        ThroughTraining(memory=100).prepare(knowledge, key=key, store=NullStore())


def test_other_releases(game, key):
    knowledge, release, _ = game
    fitted = replace(ATTACK, questions=0.5).prepare(knowledge, key=key, store=NullStore())
    gradient = Gradient(release.parameters, release.layout, release.parameters[0])
    assert fitted.run(gradient).status.outcome is Outcome.NOT_APPLICABLE
    with pytest.raises(ExhumeError, match="release: 3 parameters, the recipe's model has 226"):
        fitted.run(Weights(torch.zeros(1, 3), release.layout))
    with pytest.raises(NotApplicable, match="cannot be redone without: recipe, initial, fixed"):
        ThroughTraining().prepare(Knowledge(), key=key, store=NullStore())


def test_a_stopped_run_does_not_ask_again(game, key, tmp_path, monkeypatch):
    """Questions that were answered before the process ended are read from the store, to the bit."""
    from exhume.attacks.informed import linearisations

    knowledge, attack = game[0], replace(ATTACK, questions=1.0, chunk=4)  # 16 questions, 4 chunks
    whole = attack.prepare(knowledge, key=key, store=NullStore()).linearisations[0].answers
    asked, real = [], linearisations.answer

    def counted(*given, **more):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(1)
        return real(*given, **more)

    monkeypatch.setattr(linearisations, "answer", counted)
    with pytest.raises(KeyboardInterrupt):
        attack.prepare(knowledge, key=key, store=FolderStore(tmp_path))
    asked.clear()
    again = attack.prepare(knowledge, key=key, store=FolderStore(tmp_path))
    again = again.linearisations[0].answers
    assert len(asked) == 2  # the other two
    assert torch.equal(again.first, whole.first)
    assert torch.equal(again.rest, whole.rest)
    asked.clear()
    with pytest.raises(KeyboardInterrupt):  # another key asks other questions
        attack.prepare(knowledge, key=key.fold("other"), store=FolderStore(tmp_path))


def errors_before_and_after(recipe, fixed, target, key, **settings):
    """(n,) of what the shared adjoint finds alone, and of what the gates' steps make of it."""
    initial = recipe.architecture.initial(key)
    release, secret = release_one_each(
        recipe, initial, fixed, target, key=key, store=NullStore(), chunk=8
    )
    knowledge = Knowledge(recipe=recipe, initial=initial, fixed=fixed)
    fitted = ThroughTraining(**settings).prepare(knowledge, key=key, store=NullStore())
    alone = replace(fitted, linearisations=fitted.linearisations[:1])
    truth = secret.open().inputs
    return [
        (part.run(release).candidates[:, 0] - truth).square().flatten(1).mean(1)
        for part in (alone, fitted)
    ]


def test_a_network_with_kinks_gives_its_records_back():
    """The gates' steps are what brings them from near to exact."""
    digits = readers.load("digits")
    small = replace(digits, inputs=avg_pool2d(digits.inputs, 2))
    recipe = FullBatch(MLP((1, 4, 4), (6,), 10, "relu"), Descent(steps=20))
    key = Key.from_seed(1)
    parts = readers.split(small, Sizes(100, 2, 0, 0, 0), key)
    near, exact = errors_before_and_after(recipe, parts.fixed, parts.target[1:], key, labels=1)
    assert float(near) > 1e-5
    assert float(exact) < 1e-6


@pytest.mark.slow
def test_a_larger_network_with_kinks_gives_its_records_back():
    recipe = FullBatch(MLP((1, 8, 8), (10,), 10, "relu"), Descent(steps=40))
    key = Key.from_seed(5)
    parts = readers.split(readers.load("digits"), Sizes(300, 3, 0, 0, 0), key)
    near, exact = errors_before_and_after(recipe, parts.fixed, parts.target, key)
    assert float(exact.sort().values[1]) < 1e-6  # rounding decides the cell that others end in
    assert float(near.median()) > 1e-6
