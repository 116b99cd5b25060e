from __future__ import annotations

import json

import pytest

from exhume.studies import STUDIES, run_study

REQUIRED = {
    "mse",
    "mae_plus_mse",
    "label_accuracy",
    "oracle_mse",
    "null_success",
    "success",
    "success_low",
    "success_high",
    "shadow_accuracy",
    "reconn.300.mae_plus_mse",
}


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-mnist", "smoke", tmp_path / "run").to_json()
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["claims"] == result["claims"]
    assert set(result) >= {"schema", "study", "scale", "seed", "claims", "metrics", "wall_seconds"}
    assert set(result["metrics"]) >= REQUIRED
    assert result["metrics"]["success_low"] > result["metrics"]["null_success_high"]
    assert all(
        set(c) == {"id", "statement", "paper", "measured", "holds"} for c in result["claims"]
    )
    assert (tmp_path / "run" / "report.html").exists()


def test_every_study_is_named_after_itself():
    assert all(name == study.name for name, study in STUDIES.items())
