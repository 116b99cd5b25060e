from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-misspecified", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    assert metrics["right.mse"] < metrics["right.oracle_mse"]
    for mistake in ("other_seed", "other_records.all"):
        assert metrics[f"{mistake}.mse"] > metrics["right.mse"]
    assert metrics["fp16.test_accuracy"] == pytest.approx(metrics["fp32.test_accuracy"], abs=0.02)
    holds = {claim["id"]: claim["holds"] for claim in result["claims"]}
    assert holds["other-seed"]
    assert len(result["charts"][0]["series"]["reconstruction"]) == 18
