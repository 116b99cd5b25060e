from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-transfer", "smoke", tmp_path / "run")
    metrics = result.metrics
    assert metrics["targets"] == 30
    assert metrics["source.mse"] < metrics["mean_record.mse"]
    assert metrics["tuned.30.mse"] < metrics["zero_shot.mse"]
    assert metrics["zero_shot_moved.mse"] != metrics["zero_shot.mse"]
    assert metrics["closed_form.30.mse"] < metrics["scratch.30.mse"]
    assert metrics["closed_form.30.mse_low"] < metrics["closed_form.30.mse"]
    names = ("few", "many", "zero-shot", "zero-shot-moved", "closed-form")
    assert {c.id for c in result.claims} == {*names, *(f"cifar10-{name}" for name in names)}
    assert metrics["cifar10.targets"] == 6
    assert metrics["cifar10.zero_shot_moved.mse"] != metrics["cifar10.zero_shot.mse"]
    assert [chart.title.rpartition(": ")[2] for chart in result.charts] == ["MNIST", "CIFAR-10"]
    assert list(result.charts[0].series)[:2] == ["fine-tuned", "from scratch"]
