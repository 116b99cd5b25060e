from __future__ import annotations

import pytest
import torch

from exhume.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.oracle import near_duplicates, nearest
from exhume.score.targets import score_targets, unrelated

CLASSES = ("a", "b", "c")


def reconstruction(candidates, labels=None):
    return Reconstruction(
        candidates[:, None],
        torch.zeros(len(candidates), 1),
        Status(Outcome.CONVERGED),
        labels=None if labels is None else labels[:, None],
    )


@pytest.fixture
def parts(key):
    inputs = torch.rand(90, 1, 12, 12, generator=key.generator())
    labels = torch.arange(90) % 3
    everything = Records(inputs, labels, CLASSES)
    return everything[:30], everything[30:]


def test_a_perfect_attack_succeeds_and_its_null_does_not(parts, key):
    targets, pool = parts
    scores = score_targets(
        Secret(targets),
        reconstruction(targets.inputs, targets.labels),
        pool,
        key,
        baselines={"mean": reconstruction(pool.inputs.mean(0).expand_as(targets.inputs))},
    )
    assert scores.metrics["success"] == scores.leak.share == 1
    assert scores.metrics["null_success"] < 0.2
    assert scores.metrics["mse"] == 0
    assert scores.metrics["label_accuracy"] == 1
    assert scores.metrics["success_low"] < 1
    assert scores.metrics["pool"] == 60
    assert scores.baselines["mean"].means()["mse"] > 0.05


def test_a_worthless_attack_does_no_better_than_chance(parts, key):
    targets, pool = parts
    noise = torch.rand(30, 1, 12, 12, generator=key.fold("noise").generator())
    scores = score_targets(Secret(targets), reconstruction(noise), pool, key, baselines={})
    assert scores.metrics["success_low"] <= scores.metrics["null_success_high"]
    assert "label_accuracy" not in scores.metrics


def test_returning_a_held_record_is_never_a_success(parts, key):
    targets, pool = parts
    index, _ = nearest(targets.inputs, pool)
    scores = score_targets(
        Secret(targets), reconstruction(pool.inputs[index]), pool, key, baselines={}
    )
    assert scores.metrics["success"] == 0


def test_a_reconstruction_of_another_size_is_refused(parts, key):
    targets, pool = parts
    with pytest.raises(ExhumeError, match="1 candidates for each of 29 releases do not answer 30"):
        score_targets(Secret(targets), reconstruction(targets.inputs[:29]), pool, key, baselines={})


def test_nearest_equals_a_naive_search(parts):
    targets, pool = parts
    index, errors = nearest(targets.inputs, pool)
    naive = (targets.inputs[:, None] - pool.inputs[None]).double().square().flatten(2).mean(2)
    assert torch.equal(index, naive.argmin(1))
    torch.testing.assert_close(errors, naive.min(1).values)


def test_near_duplicates_are_noticed(parts):
    targets, pool = parts
    planted = Records(
        torch.cat([pool.inputs, targets.inputs[:2] + 0.001]), torch.zeros(62).long(), CLASSES
    )
    _, errors = nearest(targets.inputs, planted)
    assert near_duplicates(errors, planted).nonzero().flatten().tolist() == [0, 1]


def test_unrelated_is_another_target_of_the_same_label_where_there_is_one(key):
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    partner = unrelated(labels, key)
    assert (partner != torch.arange(6)).all()
    assert torch.equal(labels[partner][:5], labels[:5])
    with pytest.raises(ExhumeError, match="at least 2 are needed"):
        unrelated(labels[:1], key)


def test_intervals_are_exact(parts, key):
    targets, pool = parts
    some = torch.cat([targets.inputs[:29], pool.inputs[:1]])
    metrics = score_targets(Secret(targets), reconstruction(some), pool, key, baselines={}).metrics
    assert metrics["success"] == 29 / 30
    assert metrics["success_low"] == pytest.approx(0.828, abs=1e-3)  # Clopper and Pearson
    assert metrics["success_high"] == pytest.approx(0.9992, abs=1e-4)


def test_a_record_is_not_its_own_oracle(parts, key):
    targets, pool = parts
    everything = Records(
        torch.cat([targets.inputs, pool.inputs]), torch.cat([targets.labels, pool.labels]), CLASSES
    )
    own = torch.arange(len(targets))
    found = reconstruction(targets.inputs)
    scores = score_targets(Secret(targets), found, everything, key, baselines={}, own=own)
    assert scores.metrics["success"] == 1
    assert (scores.oracle.mse > 0).all()
