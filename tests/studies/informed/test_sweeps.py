from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.intervals import bootstrap
from exhume.score.targets import score_targets
from exhume.studies.arms import Arm
from exhume.studies.informed.sweeps import DETAILS, Pooled, binned, interval_of, pool


def arm(errors: torch.Tensor, successes: int = 0, lucky: int = 0) -> Pooled:
    return Pooled(errors.double(), (0.0, 1.0), {"mae": 0.5}, successes, lucky, len(errors))


@pytest.fixture
def errors(key):
    return torch.rand(80, 2, generator=key.generator())


def test_an_interval_of_one_mean_is_the_bootstraps(errors, key):
    found = interval_of([arm(errors[:, 0])], lambda means: means[:, 0], key)
    assert found == pytest.approx(bootstrap(errors[:, 0], key), abs=1e-12)


def test_a_difference_is_taken_target_by_target(errors, key):
    first, second = arm(errors[:, 0]), arm(errors[:, 1])
    found = interval_of([first, second], lambda means: means[:, 0] - means[:, 1], key)
    assert found == pytest.approx(bootstrap(errors[:, 0] - errors[:, 1], key), abs=1e-6)
    shifted = arm(first.errors + 0.001)  # far below the targets' own spread, and certain
    low, high = interval_of([shifted, first], lambda means: means[:, 0] - means[:, 1], key)
    assert (low, high) == pytest.approx((0.001, 0.001))


def test_arms_of_other_targets_are_refused(errors, key):
    with pytest.raises(ExhumeError, match=r"arms: \[79, 80\] targets"):
        interval_of([arm(errors[:, 0]), arm(errors[1:, 1])], lambda means: means[:, 0], key)


def test_it_leaks_only_where_success_is_above_chance_for_certain(errors):
    assert arm(errors[:, 0], successes=40, lucky=2).leaks
    assert not arm(errors[:, 0], successes=6, lucky=2).leaks
    assert not arm(errors[:, 0]).leaks


def test_metrics_carry_the_arms_name(errors):
    metrics = arm(errors[:, 0], successes=40, lucky=2).metrics("elu")
    assert metrics["elu.success"] == 0.5
    assert metrics["elu.success_low"] < 0.5 < metrics["elu.success_high"]
    assert metrics["elu.null_success"] == 0.025 < metrics["elu.null_success_high"]
    assert metrics["elu.mae"] == 0.5


def played(records, error, key):
    """Every pixel is off by `error`."""
    found = Reconstruction(
        records.inputs[:, None] + error,
        torch.zeros(len(records), 1),
        Status(Outcome.CONVERGED),
    )
    held = Records(1 - records.inputs, records.labels, records.classes)
    scores = score_targets(Secret(records), found, held, key, baselines={})
    return Arm(scores, found, (0.0, 1.0))


def test_pools_the_targets_of_all_seeds(make_records, key):
    few, more = (played(make_records(n, (6,), 2, key), e, key) for n, e in ((4, 0.1), (12, 0.3)))
    looks = [{"shares": torch.zeros(2, 4)}, {"shares": torch.ones(2, 12)}]
    pooled = pool([few, more], key, [0.5, 0.7], looks)
    assert torch.equal(pooled.errors, torch.cat([few.errors, more.errors]))
    metrics = pooled.metrics("arm")
    assert metrics["arm.targets"] == 16
    assert metrics["arm.mse"] == pytest.approx(
        (4 * 0.01 + 12 * 0.09) / 16
    )  # each target counts once
    assert metrics["arm.mse_low"] < metrics["arm.mse"] < metrics["arm.mse_high"]
    successes = [each.scores.metrics["success"] for each in (few, more)]
    assert metrics["arm.success"] == pytest.approx((4 * successes[0] + 12 * successes[1]) / 16)
    assert metrics["arm.test_accuracy"] == pytest.approx(0.6)
    assert "arm.label_accuracy" not in metrics  # no labels were inferred
    assert pooled.seen["shares"].shape == (2, 16)


def test_details_can_be_left_out(errors):
    whole = arm(errors[:, 0]).metrics("elu")
    brief = arm(errors[:, 0]).metrics("elu", without=DETAILS)
    assert set(whole) - set(brief) == {f"elu.{name}" for name in DETAILS if f"elu.{name}" in whole}
    assert set(brief) < set(whole)


def test_bins_of_equal_size_by_value(key):
    values = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 0.0])
    points = binned(values, 10 * values, 3, key)
    assert [p.x for p in points] == [0, 2, 4]  # the lower median of two
    assert [p.y for p in points] == pytest.approx([5, 25, 45])
    assert all(p.low <= p.y <= p.high for p in points)
