"""What the shadows' changes are taken from, with and without noise in training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume.attacks.informed.shadows import train_shadows
from exhume.core.contract import Knowledge
from exhume.models.mlp import MLP
from exhume.store.shards import NullStore
from exhume.train.dp import Privacy
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch


@pytest.fixture
def knowledge(make_records, key):
    recipe = FullBatch(MLP((6,), (4,), 2), Descent(steps=10), Privacy(1.0, 0.0))
    return Knowledge(
        recipe=recipe,
        initial=recipe.architecture.initial(key),
        fixed=make_records(30, (6,), 2, key),
        shadow=make_records(50, (6,), 2, key.fold("shadow")),
    )


def shadows(knowledge, key):
    return train_shadows(knowledge, "the test", fewest=2, chunk=16, key=key, store=NullStore())


def without_record(knowledge, key):
    fixed = knowledge.fixed
    return knowledge.recipe.fit(knowledge.initial, fixed, fixed.none_for(1), key)[0]


def test_without_noise_the_base_is_the_model_of_the_fixed_records(knowledge, key):
    assert torch.equal(shadows(knowledge, key).base, without_record(knowledge, key))


def test_under_noise_the_base_is_nearer_to_the_noiseless_one_than_any_draw(knowledge, key):
    noisy = replace(knowledge, recipe=replace(knowledge.recipe, privacy=Privacy(1.0, 2.0)))
    found = shadows(noisy, key)
    assert torch.equal(found.base, found.parameters.mean(0))
    quiet = without_record(knowledge, key)
    draws = torch.stack([without_record(noisy, key.fold(i)) for i in range(10)])
    assert (found.base - quiet).norm() < 0.3 * (draws - quiet).norm(dim=1).min()
