from __future__ import annotations

import math

from exhume.studies import run_study


def run(name, tmp_path):
    result = run_study(name, "smoke", tmp_path / "run")
    assert all(math.isfinite(value) for value in result.metrics.values())
    return result.metrics, {claim.id: claim.holds for claim in result.claims}


def test_tokens(tmp_path):
    metrics, holds = run("gradient-tokens", tmp_path)
    assert holds["one sentence"]
    assert holds["averaged"]
    assert metrics["attention.public.b2.exact"] > metrics["attention.public.b2.null_token_accuracy"]
    assert run("gradient-tokens", tmp_path)[0] == metrics  # taken up, not run again


def test_client(tmp_path):
    metrics, holds = run("gradient-client", tmp_path)
    assert holds["leak"]
    assert metrics["none.utility"] > 0.9999
    assert metrics["dp.noise1.recovered"] == metrics["dp.noise1.tolerant.recovered"] == 0
    assert metrics["dp.noise1.epsilon"] < metrics["dp.noise1e-2.epsilon"]
    assert metrics["larger_batch.2.recovered"] <= metrics["none.recovered"]
    assert run("gradient-client", tmp_path)[0] == metrics


def test_networks(tmp_path):
    metrics, _ = run("update-networks", tmp_path)
    assert metrics["small.b4.recovered"] == metrics["small.b8.recovered"] == 1
    assert metrics["small.b8.counted"] == metrics["small_conv.b3.counted"] == 1
    assert metrics["small_conv.b3.psnr"] > 20
    assert metrics["fedavg.small.rate0.01.recovered"] == 1
    assert run("update-networks", tmp_path)[0] == metrics
