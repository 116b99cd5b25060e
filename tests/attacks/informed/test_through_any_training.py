from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import avg_pool2d

from exhume import readers
from exhume.attacks.informed.linearisations import MatrixFree
from exhume.attacks.informed.starts import Metric, Starts, anchors_within
from exhume.attacks.informed.through_training import (
    ThroughAnyTraining,
    ThroughTraining,
    through_training_of,
)
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Weights,
)
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.models.own import architecture_named
from exhume.readers import Sizes
from exhume.report.folder import RunFolder
from exhume.store.shards import NullStore
from exhume.train.dp import Privacy
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import Order

MLP_8 = MLP((1, 8, 8), (10,), 10)
SMALL = MLP((1, 4, 4), (8,), 10)
BATCHES = MiniBatch(SMALL, Descent(8, momentum=0.9, weight_decay=1e-3), Order(20, Key.from_seed(1)))
QUICK = ThroughAnyTraining(anchors=10)
NORMED = """
from torch import nn
def build():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ELU(), nn.Flatten(), nn.Linear(16, 10)
    )
"""


def play(recipe, unknown=1, targets=1, attack=QUICK):
    """Trained on 40 digits of 4x4 and on those that are unknown."""
    key, digits = Key.from_seed(0), readers.load("digits")
    small = replace(digits, inputs=avg_pool2d(digits.inputs, 2))
    parts = readers.split(small, Sizes(40, unknown * targets), key)
    initial = recipe.architecture.initial(key)
    grouped = replace(
        parts.target,
        inputs=parts.target.inputs.reshape(targets, unknown, *parts.target.shape),
        labels=parts.target.labels.reshape(targets, unknown),
    )
    trained = recipe.fit(initial, parts.fixed, grouped, key.fold("victim"))
    release = Weights(trained, recipe.architecture.layout)
    knowledge = Knowledge(recipe=recipe, initial=initial, fixed=parts.fixed)
    prepared = replace(attack, unknown=unknown).prepare(knowledge, key=key, store=NullStore())
    return prepared, release, grouped


def starts_of(key, anchors):
    """Starts of a small training, and the records it knows."""
    fixed = readers.split(readers.load("digits"), Sizes(60), key).fixed
    initial = MLP_8.initial(key)
    recipe, live = FullBatch(MLP_8, Descent(3)), torch.ones_like(initial)
    own = {"key": key, "store": NullStore(), "progress": lambda *_: None}
    return Starts.of(recipe, initial, fixed, live, anchors=anchors, **own), fixed


def error(found, truth) -> float:
    """The largest mean squared error, records matched with the nearest candidate."""
    apart = truth.inputs[:, :, None] - found.candidates[:, None]
    return float(apart.square().flatten(3).mean(3).amin(2).max())


@pytest.fixture(scope="module")
def played():
    return play(BATCHES, targets=2)


def test_mini_batches_of_a_known_order_give_the_record_back(played):
    prepared, release, truth = played
    found = prepared.run(release)
    assert error(found, truth) < 1e-8
    assert torch.equal(found.labels, truth.labels)
    assert found.status.outcome is Outcome.CONVERGED
    assert -1e-3 < float(found.confidence.min()) <= 0
    assert found.cost.models == pytest.approx(found.observed["trainings"], abs=1)
    assert found.cost.models <= prepared.cost.models + 2 * prepared.settings.trainings


def test_gates_that_jump_are_unknowns_too(monkeypatch):
    steps = []
    plain = MatrixFree._solve

    def counted(self, gates, *given):
        if gates.doubts:
            steps.append(gates.count)
        return plain(self, gates, *given)

    monkeypatch.setattr(MatrixFree, "_solve", counted)
    recipe = FullBatch(MLP((1, 4, 4), (12,), 10, "relu"), Descent(10, momentum=0.9))
    prepared, release, truth = play(recipe)
    found = prepared.run(release)
    assert error(found, truth) < 1e-8
    assert torch.equal(found.labels, truth.labels)
    assert steps[0] > 5  # gates in doubt
    assert steps[-1] < steps[0] / 3  # and fewer of them, the nearer the truth


def test_two_records_come_back_at_once():
    prepared, release, truth = play(FullBatch(SMALL, Descent(8, momentum=0.9)), unknown=2)
    found = prepared.run(release)
    assert found.candidates.shape[1] == 2
    assert error(found, truth) < 1e-8


def test_a_network_of_ones_own_with_batch_norm(tmp_path):
    (tmp_path / "mine.py").write_text(NORMED)
    network = architecture_named("mine.py:build", input_shape=(1, 4, 4), classes=10, root=tmp_path)
    recipe = MiniBatch(network, Descent(8, 0.05, 0.9), Order(20, Key.from_seed(1)))
    prepared, release, truth = play(recipe, attack=replace(QUICK, anchors=5))
    found = prepared.run(release)
    assert torch.equal(found.labels, truth.labels)
    assert error(found, truth) < 1e-4
    assert float(prepared.starts.live.sum()) == recipe.architecture.layout.size - 8


def test_a_release_of_another_training_is_not_explained(played):
    prepared, _, _ = played
    other = play(replace(BATCHES, order=Order(20, Key.from_seed(2))))[1]
    few = replace(
        prepared,
        settings=replace(prepared.settings, iterations=2, labels=1),
        linearisations=(replace(prepared.linearisations[0], trainings=200),),
    )
    missed = few.run(other)
    assert missed.status.outcome is Outcome.STOPPED_EARLY
    assert float(missed.confidence.max()) < -0.01
    assert "0% of the releases are explained" in missed.status.reason


def test_finished_releases_are_kept(played, tmp_path):
    prepared, releases, _ = played
    release = Weights(releases.parameters[:1], releases.layout)
    with RunFolder.claimed(tmp_path / "run") as folder:
        once = replace(prepared, store=folder.store()).run(release)
        kept = replace(prepared, store=folder.store(), recipe=BATCHES)
        again = kept.run(release)
    assert torch.equal(once.candidates, again.candidates)
    assert again.cost.seconds - prepared.cost.seconds < once.cost.seconds - prepared.cost.seconds


def test_effort_ends_where_it_is_said_to():
    attack = replace(QUICK, trainings=1)
    prepared, release, _ = play(BATCHES, attack=attack)
    assert prepared.run(release).observed["trainings"] < 101 + 3 + 2 + 3 * attack.products + 4


def test_which_attack_goes_through_a_recipe():
    descent = Descent(5)
    assert isinstance(through_training_of(FullBatch(MLP_8, descent)), ThroughTraining)
    for recipe in (BATCHES, FullBatch(MLP_8, Adam(5)), FullBatch(CNN((1, 8, 8), (2,), (3,), (1,)))):
        assert isinstance(through_training_of(recipe), ThroughAnyTraining)
    with pytest.raises(NotApplicable, match="adds noise the adversary cannot redo"):
        through_training_of(FullBatch(MLP_8, privacy=Privacy(1.0, 1.0)))


def test_starts_of_two_records_of_one_label_are_apart(key):
    starts, _ = starts_of(key, anchors=4)
    assert starts.models == 41
    ranked = starts.ranked(starts.ends[3, 0], 2)
    assert len(ranked) == 55
    assert [guess.left for guess in ranked] == sorted(guess.left for guess in ranked)
    twins = next(guess for guess in ranked if guess.labels.tolist() == [4, 4])
    assert not torch.equal(twins.inputs[0], twins.inputs[1])


def test_an_anchor_is_its_own_start(key):
    starts, fixed = starts_of(key, anchors=20)
    rare = int((fixed.labels == 3).sum())
    assert rare < 20  # so that records of other labels stand in
    assert torch.equal(starts.anchors[3, :rare], fixed.inputs[fixed.labels == 3])
    released = starts.ends[3, 1]
    (first, *_) = starts.ranked(released, 1)
    assert first.labels.tolist() == [3]
    assert float((first.inputs[0] - starts.anchors[3, 1]).square().mean()) < 1e-3
    mean, nearest = starts.others(released, first)
    assert torch.equal(mean.inputs[0], starts.means[3])
    assert torch.equal(nearest.inputs[0], starts.anchors[3, 1])
    assert starts.distance(released) <= float((starts.base - released).norm())


def test_anchors_stay_within_time_and_memory():
    attack = ThroughAnyTraining(memory=64)
    assert anchors_within(attack.anchors, attack.memory, 10, 1000) == 30
    assert anchors_within(attack.anchors, attack.memory, 100, 1000) == 6
    assert anchors_within(attack.anchors, attack.memory, 600, 1000) == 2
    assert (
        anchors_within(attack.anchors, attack.memory, 10, 100_000) == 8
    )  # 64 MiB for them and for the metric
    smooth = attack.seconds(FullBatch(SMALL, Descent(8)), 10, 2.0)
    kinked = attack.seconds(FullBatch(MLP((1, 4, 4), (8,), 10, "relu"), Descent(8)), 10, 2.0)
    assert smooth[0] == kinked[0] == 2 * (1 + 10 * 30)
    assert smooth[1] < kinked[1] == pytest.approx(attack.trainings * (2 + 8 * 2e-3))
    free = attack.seconds(FullBatch(SMALL, Descent(200)), 10, 0.0)
    assert free[1] > 60  # one after another, a step takes its least, however small the network


def test_the_metric_weighs_stiff_directions_down(key):
    draw = torch.randn(40, 50, generator=key.generator())
    draw[:, 0] *= 100
    metric = Metric.of(draw)
    stiff, soft = torch.eye(50)[0], torch.eye(50)[1]
    assert float(metric.apply(stiff).norm()) < 0.05
    assert float(metric.apply(soft).norm()) > 0.5
    one, other = torch.randn(2, 50, generator=key.fold(1).generator())
    there, back = metric.apply(one) @ other, one @ metric.apply(other)
    assert float(there) == pytest.approx(float(back), abs=1e-4)
    same = Metric.of(torch.zeros(3, 5))
    assert torch.equal(same.apply(torch.ones(5)), torch.ones(5))


def test_other_releases(played, key):
    prepared, release, _ = played
    gradient = Gradient(release.parameters, release.layout, release.parameters[0])
    assert prepared.run(gradient).status.outcome is Outcome.NOT_APPLICABLE
    with pytest.raises(ExhumeError, match="release: 3 parameters, the recipe's model has 226"):
        prepared.run(Weights(torch.zeros(1, 3), release.layout))
    with pytest.raises(NotApplicable, match="cannot be redone without: recipe, initial, fixed"):
        ThroughAnyTraining().prepare(Knowledge(), key=key, store=NullStore())
