from __future__ import annotations

import pytest
from safetensors.torch import load_file

from exhume.score.measures import STATISTICS
from exhume.studies import run_study


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-gallery", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    assert metrics["mse"] < metrics["mean_record_mse"]
    evidence = load_file(tmp_path / "run" / result["attacks"][0]["evidence"])
    order = evidence["mse"].argsort()
    for name, measure in STATISTICS.items():
        short, values = name.replace(" ", "_"), measure(evidence["targets"])
        assert metrics[f"{short}.easiest"] == pytest.approx(float(values[order[:4]].mean()))
        assert metrics[f"{short}.hardest"] == pytest.approx(float(values[order[-4:]].mean()))
        assert metrics[f"{short}.rho_low"] < metrics[f"{short}.rho"] < metrics[f"{short}.rho_high"]
    assert len(result["charts"]) == len(result["claims"]) == 5
    assert "Rank 1:" in (tmp_path / "run" / "report.html").read_text()
