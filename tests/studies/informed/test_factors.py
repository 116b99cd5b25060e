from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-factors", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    for arm in ("width.5", "width.10", "depth.1", "depth.2", "rate.0.05", "rate.0.1"):
        assert metrics[f"{arm}.mse_low"] < metrics[f"{arm}.mse"] < metrics[f"{arm}.mean_record_mse"]
    assert metrics["depth.1.mse"] == metrics["width.10.mse"] == metrics["rate.0.1.mse"]
    assert metrics["width.change"] == pytest.approx(
        metrics["width.10.mse"] - metrics["width.5.mse"]
    )
    for where in ("base", "initial"):
        norm = f"gradient_norm.{where}.rho"
        assert -1 <= metrics[f"{norm}_low"] < metrics[norm] < metrics[f"{norm}_high"] <= 1
    assert len(result["charts"]) == 4
    assert {c["id"] for c in result["claims"]} == {"width", "depth", "rate", "gradient-norm"}
