from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("reconstructors", "smoke", tmp_path / "run")
    metrics = result.metrics
    assert metrics["through_training.label_accuracy"] == 1
    assert metrics["through_training.mse"] < 1e-4
    assert metrics["closed_form.200.mae_plus_mse"] < metrics["reconn.100.mae_plus_mse"]
    assert {"relu.corrected.100.mse", "closed_form.100.seconds"} <= set(metrics)
    assert metrics["corrected.200.mae_plus_mse"] < metrics["closed_form.200.mae_plus_mse"]
    assert metrics["mnemonist.100.mse"] != metrics["reconn.100.mse"]
    assert {"reconn_change.150.mse", "relu.corrected.200.mse"} <= set(metrics)
    assert metrics["paper_setting.corrected.mse"] <= metrics["paper_setting.closed_form.40.mse"]
    assert {claim.id for claim in result.claims} == {
        "exact",
        "closed-form",
        "shadows",
        "corrected",
        "notebook",
        "paper-setting",
    }
