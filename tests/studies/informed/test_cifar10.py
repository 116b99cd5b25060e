from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-cifar10", "smoke", tmp_path / "run")
    metrics = result.metrics
    assert metrics["closed_form.mse"] < 0.5 * metrics["mean_record.mse"]
    assert metrics["closed_form.mse"] < 0.5 * metrics["closed_form_per_label.mse"]
    assert metrics["closed_form.lpips"] < metrics["oracle.lpips"] < metrics["reconn.lpips"]
    assert metrics["dp.epsilon_10000.mse"] > metrics["dp.mean_record.mse"]
    assert {"oracle.lpips", "steps_2.mse", "dp.not_private.test_accuracy"} <= set(metrics)
    assert {claim.id for claim in result.claims} == {
        "beats-oracle",
        "reconn-learns",
        "imprint",
        "perceptual",
        "private",
        "private-most",
        "steps",
    }
    assert "Private record" in (tmp_path / "run" / "report.html").read_text()
