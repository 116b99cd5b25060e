from __future__ import annotations

import torch
import torch.nn.functional as F

from exhume.models.mlp import MLP
from exhume.score.intervals import auc
from exhume.studies.informed.init import membership_scores
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch


def test_the_loss_is_that_of_the_module(key, make_records):
    mlp = MLP((2, 3), (4,), 3)
    records = make_records(6, (2, 3), 3, key)
    parameters = torch.stack([mlp.initial(key.fold(i)) for i in range(3)])
    found = membership_scores(mlp, parameters, records)
    for i in range(3):
        module = mlp.build().double()
        torch.nn.utils.vector_to_parameters(parameters[i].double(), module.parameters())
        logits = module(records.inputs.double())
        expected = F.cross_entropy(logits, records.labels, reduction="none")
        torch.testing.assert_close(found[i], -expected.detach())


def test_models_trained_with_a_record_are_told_apart(key, make_records):
    """Shared start, jitter by leaving out one fixed record: the target's loss gives it away."""
    mlp = MLP((6,), (5,), 2)
    recipe = FullBatch(mlp, Descent(steps=60))
    records = make_records(30, (6,), 2, key)
    target = make_records(1, (6,), 2, key.fold("target"))
    target.labels.fill_(1)  # a mislabelled record is a surprising one
    initial = mlp.initial(key)
    with_it, without = [], []
    for i in range(8):
        jittered = records[torch.arange(30) != i]
        with_it.append(recipe.fit(initial, jittered, target.one_each(), key))
        without.append(recipe.fit(initial, jittered, target.none_for(1), key))
    members = membership_scores(mlp, torch.cat(with_it), target)
    others = membership_scores(mlp, torch.cat(without), target)
    assert float(auc(members, others)) > 0.95
    assert float(auc(members[:4], members[4:])) < 0.95
