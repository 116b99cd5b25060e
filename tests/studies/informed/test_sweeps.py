from __future__ import annotations

import pytest
import torch

from exhume.contract import ExhumeError
from exhume.score.intervals import bootstrap
from exhume.studies.informed.sweeps import Pooled, interval_of


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
