from __future__ import annotations

import json

from exhume.studies import run_study


def test_smoke(tmp_path):
    result = run_study("margin-multiclass", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    for victim in ("i", "ii", "binary"):
        for name in ("good", "decoy_rate", "tpr_at_1pct", "residual_at_truth"):
            assert f"{victim}.{name}" in metrics
        assert (f"{victim}.good_eq6" in metrics) == (victim != "binary")
        assert 0 <= metrics[f"{victim}.decoy_rate"] <= 1
    assert metrics["i.loss"] <= 2e-6
    assert metrics["i.residual_at_truth"] < metrics["i.residual_at_truth_eq6"]
    assert metrics["i.good"] >= 5
    assert metrics["ii.good"] >= 5
    titles = [section["name"].split(",")[0] for section in result["attacks"]]
    assert titles == ["First layer", "Hidden span", "First layer"]
    assert result["charts"][0]["series"]["ours"][0]["y"] == metrics["i.good"]
    assert {claim["id"] for claim in result["claims"]} == {
        "bar",
        "threshold",
        "against-eq6",
        "classes",
        "decay",
    }
    json.dumps(result)
    again = run_study("margin-multiclass", "smoke", tmp_path / "run")
    assert again.metrics == metrics
