from __future__ import annotations

import pytest

from exhume.studies import run_study


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
