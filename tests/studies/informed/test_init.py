from __future__ import annotations

import pytest
import torch

from exhume.studies import run_study
from exhume.studies.informed.init import BINS, histogram


def test_a_histogram_counts_every_model_in_bins_over_the_range_of_both():
    members, others = torch.linspace(-1, 0, 50), torch.linspace(-4, -3, 70)  # minus the losses
    found = histogram(members, others)
    counts = {name: [found[f"{name}.{i}"] for i in range(BINS)] for name in ("with", "without")}
    assert (sum(counts["with"]), sum(counts["without"])) == (50, 70)
    middle = [found[f"loss.{i}"] for i in range(BINS)]
    assert 0 < middle[0] < 0.1
    assert 3.9 < middle[-1] < 4
    assert all(x < 1.1 for x, count in zip(middle, counts["with"], strict=True) if count)
    assert all(x > 2.9 for x, count in zip(middle, counts["without"], strict=True) if count)


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-init", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    assert metrics["auc_shared"] > 0.9
    assert metrics["auc_shared"] > metrics["auc_fresh"]
    assert metrics["gap_over_spread_shared"] > metrics["gap_over_spread_fresh"]
    again = run_study("informed-init", "smoke", tmp_path / "run").to_json()
    assert again["metrics"] == metrics
