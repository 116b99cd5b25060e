"""From settings to recipes: which optimiser, which batches, which privacy, and who knows the order."""

from __future__ import annotations

import math

import pytest

from exhume.choices import as_known, ignored_beside_own, recipe_for
from exhume.core.contract import ExhumeError
from exhume.settings import Settings
from exhume.train.dp import Privacy
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch, MiniBatch


def recipe(make_records, key, **victim):
    settings = Settings.from_mapping({"victim": victim})
    return recipe_for(settings, make_records(6, (4,), 3, key)), settings


def test_the_default_is_full_batch_and_not_private(make_records, key):
    found, settings = recipe(make_records, key)
    assert found == FullBatch(found.architecture, Descent())
    assert found.privacy == Privacy(math.inf, 0.0)
    assert as_known(found, settings) == found


@pytest.mark.parametrize(
    ("victim", "kind", "descent"),
    [
        ({"optimiser": "sgd", "batch": 4, "rate": 0.3}, MiniBatch, Descent(rate=0.3)),
        ({"optimiser": "adam", "batch": 4, "steps": 7}, MiniBatch, Adam(7, 0.1)),
        ({"optimiser": "adam", "weight_decay": 0.1}, FullBatch, Adam(100, 0.1, weight_decay=0.1)),
    ],
)
def test_optimisers(make_records, key, victim, kind, descent):
    found, _ = recipe(make_records, key, **victim)
    assert type(found) is kind
    assert found.descent == descent


def test_privacy(make_records, key):
    found, _ = recipe(make_records, key, dp_clip=10.0, dp_noise=2.0)
    assert found.privacy == Privacy(10.0, 2.0)
    assert "differentially private: clip 10, noise multiplier 2" in str(found)


def test_an_adversary_who_does_not_know_the_order_has_its_own(make_records, key):
    known, settings = recipe(make_records, key, optimiser="sgd", batch=4)
    assert as_known(known, settings) == known
    unknown, settings = recipe(make_records, key, optimiser="sgd", batch=4, batch_order="unknown")
    assert unknown == known  # the victim trains alike
    adversary = as_known(unknown, settings)
    assert adversary != known
    assert adversary.order.size == 4
    full, settings = recipe(make_records, key, batch_order="unknown")
    assert as_known(full, settings) == full


@pytest.mark.parametrize(
    ("victim", "message"),
    [
        ({"optimiser": "lbfgs"}, "optimiser: 'lbfgs' is not one of gd, sgd, adam"),
        ({"batch": 4}, "batch: 4 given, but gd sees all records"),
        ({"optimiser": "sgd"}, "batch: sgd needs the number of records"),
        ({"dp_noise": 1.0}, "dp_noise: 1.0 given without a dp_clip"),
        ({"optimiser": "sgd", "batch": 4, "dp_clip": 1.0}, "not yet for: batches of 4"),
        ({"dp_clip": -1.0}, "victim.dp_clip: -1.0 given, at least 0 needed"),
    ],
)
def test_what_does_not_go_together_is_said(make_records, key, victim, message):
    with pytest.raises(ExhumeError, match=message):
        recipe(make_records, key, **victim)


def test_another_word_for_the_order_is_refused(make_records, key):
    with pytest.raises(ExhumeError, match="batch_order: 'secret' is not one of known, unknown"):
        recipe(make_records, key, batch_order="secret")


def test_what_a_function_of_ones_own_ignores_is_said():
    settings = Settings.from_mapping({"victim": {"train": "fit.py:train", "momentum": 0.9}})
    assert ignored_beside_own(settings).endswith("momentum in [victim] change nothing")
    assert not ignored_beside_own(Settings.from_mapping({"victim": {"momentum": 0.9}}))
