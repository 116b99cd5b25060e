from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.copies import practically_held
from exhume.score.intervals import clopper_pearson, detectable_rate, rate_of
from exhume.score.measures import nearest
from exhume.score.targets import measure, named_rightly, nearest_is_right, score_targets, unrelated

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


def test_every_number_by_hand(parts, key):
    """Two targets are held already; the others are measured against what is held, and at random."""
    targets, pool = parts
    held = Records(
        torch.cat([pool.inputs, targets.inputs[[4, 9]] + 1e-3]),
        torch.cat([pool.labels, targets.labels[[4, 9]]]),
        CLASSES,
    )
    noise = torch.rand(30, 1, 12, 12, generator=key.fold("noise").generator())
    amount = torch.linspace(0, 2, 30)[:, None, None, None]
    found = targets.inputs + amount * (noise - 0.5)
    guessed = torch.arange(30) % 2
    answer = reconstruction(found, guessed)
    scores = score_targets(Secret(targets), answer, held, key, baselines={})

    def squared(a, b):
        return [float((x.double() - y.double()).square().mean()) for x, y in zip(a, b, strict=True)]

    own = squared(found, targets.inputs)
    each = [squared(held.inputs, one[None].expand(62, 1, 12, 12)) for one in targets.inputs]
    nearest_one = [min(row) for row in each]
    partner = unrelated(targets.labels, key.fold("null"))
    other = squared(found[partner], targets.inputs)
    new = [i for i in range(30) if i not in (4, 9)]
    won = sum(own[i] < nearest_one[i] for i in new)
    lucky = sum(other[i] < nearest_one[i] for i in new)
    assert 10 < won < 28 > lucky
    low, high = clopper_pearson(won, 28)
    null_low, null_high = clopper_pearson(lucky, 28)
    expected = {
        "mse": sum(own) / 30,
        "mae": float((found - targets.inputs).abs().mean()),
        "mae_plus_mse": sum(own) / 30 + float((found - targets.inputs).abs().mean()),
        "oracle_mse": sum(nearest_one) / 30,
        "null_mse": sum(other) / 30,
        "targets": 30,
        "pool": 62,
        "duplicates": 2,
        "success": won / 28,
        "success_low": low,
        "success_high": high,
        "null_success": lucky / 28,
        "null_success_low": null_low,
        "null_success_high": null_high,
        "detectable_rate": detectable_rate(28, null_high),
        "label_accuracy": 10 / 30,  # equal for numbers that leave 0 or 1, divided by 6
    }
    expected |= {name: scores.metrics[name] for name in ("psnr", "ssim")}
    assert scores.metrics == pytest.approx(expected, rel=1e-5)
    assert scores.leak == rate_of(
        won, 28, chance=lucky / 28, detectable=expected["detectable_rate"]
    )
    places = [row.index(min(row)) for row in each]
    assert torch.equal(scores.evidence["nearest"], held.inputs[places])
    assert scores.evidence["null_mse"].tolist() == pytest.approx(other, rel=1e-5)
    assert torch.equal(scores.evidence["inferred"], guessed)


def test_where_everything_is_held_there_is_no_rate(parts, key):
    targets, _ = parts
    found = reconstruction(targets.inputs)
    scores = score_targets(Secret(targets), found, targets, key, baselines={})
    assert scores.leak is None
    assert "success" not in scores.metrics
    assert scores.metrics["duplicates"] == 30


def test_vectors_have_no_similarity_of_images(key):
    truth = torch.rand(4, 3, generator=key.generator())
    errors = measure(truth + 0.5, truth)
    assert set(errors.named()) == {"mse", "mae"}
    assert errors.means() == pytest.approx({"mse": 0.25, "mae": 0.5})
    images = truth.reshape(1, 3, 2, 2)
    assert set(measure(images, images).named()) == {"mse", "mae", "psnr", "ssim"}


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
    nothing = Reconstruction(
        torch.zeros(30, 0, 1, 12, 12), torch.zeros(30, 0), Status(Outcome.CONVERGED)
    )
    with pytest.raises(ExhumeError, match="0 candidates for each of 30 releases do not answer 30"):
        score_targets(Secret(targets), nothing, pool, key, baselines={})


def test_nearest_equals_a_naive_search(key):
    """More records than are searched at once; none of them is its own nearest."""
    records = torch.rand(300, 1, 2, 4, generator=key.generator())
    others = torch.rand(20, 1, 2, 4, generator=key.fold("others").generator())
    pool = Records(torch.cat([others, records.flip(0)]), torch.zeros(320).long(), CLASSES)
    own = 319 - torch.arange(300)
    index, errors = nearest(records, pool)
    assert torch.equal(index, own)
    assert errors.max() == 0
    index, errors = nearest(records, pool, own)
    naive = (records[:, None] - pool.inputs[None]).double().square().flatten(2).mean(2)
    naive[torch.arange(300), own] = torch.inf
    assert torch.equal(index, naive.argmin(1))
    torch.testing.assert_close(errors, naive.min(1).values)


def test_near_duplicates_are_noticed(parts):
    targets, pool = parts
    planted = Records(
        torch.cat([pool.inputs, targets.inputs[:2] + 0.001]), torch.zeros(62).long(), CLASSES
    )
    _, errors = nearest(targets.inputs, planted)
    assert practically_held(targets.inputs, planted, errors).nonzero().flatten().tolist() == [0, 1]
    idle = Records(torch.ones(5, 2), torch.zeros(5).long(), CLASSES)
    assert practically_held(idle.inputs[:1], idle, torch.zeros(1)).tolist() == [True]


def test_unrelated_is_another_target_of_the_same_label_where_there_is_one(key):
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    partner = unrelated(labels, key)
    assert (partner != torch.arange(6)).all()
    assert torch.equal(labels[partner][:5], labels[:5])
    assert sorted(partner[:5].tolist()) == [0, 1, 2, 3, 4]  # each answer is given to one other
    for seed in range(10):
        partner = unrelated(torch.tensor([0, 1, 2, 0, 1]), key.fold(seed))
        assert partner[[0, 1, 3, 4]].tolist() == [3, 4, 0, 1]
        assert partner[2] != 2
    assert unrelated(torch.tensor([0, 1]), key).tolist() == [1, 0]
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


NAMED_CLASSES = ("a", "b")


def records(rows: list[list[float]]) -> Records:
    return Records(torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64), NAMED_CLASSES)


def answers(rows: list[list[float]]) -> Reconstruction:
    given = torch.tensor(rows)[:, None]
    return Reconstruction(given, torch.zeros(len(rows), 1), Status(Outcome.CONVERGED))


LISTED = records([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])


def test_the_nearest_candidate_counts():
    secret = Secret(records([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    found = named_rightly(secret, answers([[0.2, 0.3], [0.9, 0.1], [0.8, -3.0]]), LISTED)
    assert found.tolist() == [True, False, True]


def test_equal_candidates_are_one():
    secret = Secret(LISTED[3:])
    assert named_rightly(secret, answers([[1.0, 0.0]]), LISTED).tolist() == [True]


def test_many_candidates_of_any_shape(key):
    listed = torch.rand(40, 2, 3, generator=key.generator())
    which = torch.randint(40, (25,), generator=key.generator())
    answers = listed[which] + 0.3 * torch.randn(25, 2, 3, generator=key.generator())
    naive = [
        min(range(40), key=lambda i: float((answer - listed[i]).square().sum())) == own
        for answer, own in zip(answers, which.tolist(), strict=True)
    ]
    found = nearest_is_right(answers, listed[which], listed)
    assert found.tolist() == naive
    assert 5 < sum(naive) < 25


def test_refusals():
    with pytest.raises(ExhumeError, match="candidates: a record behind a release is not on the"):
        named_rightly(Secret(records([[0.5, 0.5]])), answers([[0.5, 0.5]]), LISTED)
    with pytest.raises(
        ExhumeError, match="1 candidates for each of 2 releases do not answer 1 rec"
    ):
        named_rightly(Secret(LISTED[:1]), answers([[0.5, 0.5], [0.0, 0.0]]), LISTED)
    nothing = Reconstruction(torch.zeros(1, 0, 2), torch.zeros(1, 0), Status(Outcome.CONVERGED))
    with pytest.raises(ExhumeError, match="0 candidates for each of 1 releases"):
        named_rightly(Secret(LISTED[:1]), nothing, LISTED)
