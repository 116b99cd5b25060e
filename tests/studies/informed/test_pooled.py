from __future__ import annotations

import pytest
import torch

from exhume.contract import Outcome, Reconstruction, Records, Secret, Status
from exhume.score.targets import score_targets
from exhume.studies.arms import Arm
from exhume.studies.informed.pooled import Pooled, binned, point, spread


def arm(records, error, key):
    """Every pixel is off by `error`."""
    found = Reconstruction(
        records.inputs[:, None] + error,
        torch.zeros(len(records), 1),
        Status(Outcome.CONVERGED),
    )
    pool = Records(1 - records.inputs, records.labels, records.classes)
    scores = score_targets(Secret(records), found, pool, key, baselines={})
    return Arm(scores, found, (0.0, 1.0))


def test_pools_the_targets_of_all_seeds(make_records, key):
    few, more = (
        arm(make_records(n, (6,), 2, key), e, key).scores.attack.mse
        for n, e in ((4, 0.1), (12, 0.3))
    )
    pooled = Pooled(
        [
            arm(make_records(4, (6,), 2, key), 0.1, key),
            arm(make_records(12, (6,), 2, key), 0.3, key),
        ]
    )
    assert torch.equal(pooled.mse, torch.cat([few, more]))
    metrics = pooled.metrics("arm", key)
    assert metrics["arm.targets"] == 16
    assert metrics["arm.mse"] == pytest.approx(
        (4 * 0.01 + 12 * 0.09) / 16
    )  # each target counts once
    assert metrics["arm.mse_low"] < metrics["arm.mse"] < metrics["arm.mse_high"]
    successes = [each.scores.metrics["success"] for each in pooled.arms]
    assert metrics["arm.success"] == pytest.approx(sum(successes) / 2)
    assert "arm.label_accuracy" not in metrics  # no labels were inferred


def test_a_point_is_what_spread_wrote(key):
    metrics = spread("share", torch.tensor([0.1, 0.3, 0.5]), key)
    assert metrics["share"] == pytest.approx(0.3)
    drawn = point(7, "share", metrics)
    assert (drawn.x, drawn.y, drawn.low) == (7, metrics["share"], metrics["share_low"])
    assert drawn.high == metrics["share_high"]
    same = spread("share", torch.zeros(3), key)  # shares of parameters, not successes to be counted
    assert (same["share_low"], same["share_high"]) == (0, 0)


def test_bins_of_equal_size_by_value(key):
    values = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 0.0])
    points = binned(values, 10 * values, 3, key)
    assert [p.x for p in points] == [0, 2, 4]  # the lower median of two
    assert [p.y for p in points] == pytest.approx([5, 25, 45])
    assert all(p.low <= p.y <= p.high for p in points)
