from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-zero-gradients", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    assert metrics["mlp.elu.off"] == metrics["mlp.leaky-relu.off"] == 0
    assert metrics["mlp.tanh.off"] < 0.02  # its slope rounds to 0 far out
    assert 0.2 < metrics["mlp.relu.off"] < 0.9
    assert metrics["mlp.floor.off"] < metrics["mlp.relu.off"]
    # black pixels alone make the smooth ones' zeros, and the larger part of ReLU's
    assert metrics["mlp.elu.fc1_weight"] == pytest.approx(metrics["mlp.black_pixels"], abs=1e-6)
    assert metrics["mlp.relu.fc1_weight"] > metrics["mlp.black_pixels"] > 0.7
    assert metrics["cnn.elu.conv"] == 0 < metrics["cnn.relu.conv"] < 1
    assert metrics["mlp.elu.mse"] < metrics["mlp.elu.oracle_mse"]
    assert [len(chart["series"]) for chart in result["charts"]] == [5, 5, 2, 1, 3]
    assert metrics["cnn.relu.rate_0.01.dead"] == 0
    low, high = (metrics[f"cnn.relu.rate_0.5.conv_{end}"] for end in ("low", "high"))
    assert low <= metrics["cnn.relu.rate_0.5.conv"] <= high
    assert len(result["claims"]) == 6
