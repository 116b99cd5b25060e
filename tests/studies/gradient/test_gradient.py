"""The studies of gradients at smoke scale."""

from __future__ import annotations

import math

import pytest

from exhume.studies import run_study
from exhume.studies.gradient.tensor import _slope


def run(name, tmp_path):
    result = run_study(name, "smoke", tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()
    assert all(math.isfinite(value) for value in result.metrics.values())
    return result.metrics, {claim.id: claim.holds for claim in result.claims}


def test_slope():
    assert _slope([(n, 3 * n**-0.5) for n in (2, 8, 64)]) == pytest.approx(-0.5)


@pytest.mark.slow
def test_tensor(tmp_path):
    metrics, holds = run("gradient-tensor", tmp_path)
    assert set(holds) == {"neurons.tanh", "neurons.relu", "inputs.tanh", "inputs.relu"}
    for name in ("tanh", "relu"):
        assert metrics[f"slope_m.{name}"] < 0
        assert metrics[f"error.{name}.m32768.d10"] < 0.2
        assert metrics[f"batch_size_right.{name}.m32768.d10"] == 1
    again, _ = run("gradient-tensor", tmp_path)
    assert again == metrics


def test_batch(tmp_path):
    metrics, holds = run("gradient-batch", tmp_path)
    assert holds == {"tanh.b4": True, "relu.b4": True}
    assert metrics["tanh.b4.recovered"] == metrics["tanh.b4.batch_size_right"] == 1
    assert metrics["tanh.b4.raw.min_cosine"] > 0.999
    assert metrics["tanh.b4.matching.mean_cosine"] < metrics["tanh.b4.mean_cosine"]


@pytest.mark.slow
def test_start(tmp_path):
    metrics, holds = run("gradient-start", tmp_path)
    assert set(holds) == {"better-start", "polish", "fit"}
    assert metrics["fitted.mean_cosine"] == pytest.approx(1, abs=1e-4)
    assert metrics["tensor.mean_cosine"] > metrics["noise_start.mean_cosine"]


@pytest.mark.slow
def test_query(tmp_path):
    metrics, holds = run("gradient-query", tmp_path)
    assert holds["random.tanh"]
    assert metrics["tanh.steps5.gradient_norm"] != metrics["tanh.steps0.gradient_norm"]


@pytest.mark.slow
def test_defences(tmp_path):
    metrics, _ = run("gradient-defences", tmp_path)
    assert metrics["none.span.recovered"] == 1
    assert metrics["none.utility"] == pytest.approx(1)
    assert metrics["noise.1.utility"] == pytest.approx(2**-0.5, abs=0.02)
    assert metrics["prune.0.9.span.recovered"] < 1


@pytest.mark.slow
def test_noise(tmp_path):
    metrics, holds = run("gradient-noise", tmp_path)
    assert holds["span.relu"]  # dL/dW is as it was
    for name in ("relu", "tanh"):
        row = f"{name}.m4096.b2"
        assert metrics[f"{row}.none.fitted_error"] < 1e-3 < metrics[f"{row}.none.error"]
        assert metrics[f"{row}.none.error"] < metrics[f"{row}.last.error"]
    assert metrics["relu.m16384.b2.last.error"] < metrics["relu.m4096.b2.last.error"]
    assert metrics["images.digits.m8192.last.worst_error"] <= 2**0.5


@pytest.mark.slow
def test_deep(tmp_path):
    metrics, holds = run("gradient-deep", tmp_path)
    assert holds == {"features": True, "records": True}
    assert metrics["depth1.features.recovered"] == 1


@pytest.mark.slow
def test_tokens(tmp_path):
    metrics, holds = run("gradient-tokens", tmp_path)
    assert holds["one sentence"]
    assert holds["averaged"]
    assert metrics["attention.public.b2.exact"] > metrics["attention.public.b2.null_token_accuracy"]
    assert run("gradient-tokens", tmp_path)[0] == metrics  # taken up, not run again


@pytest.mark.slow
def test_networks(tmp_path):
    metrics, _ = run("update-networks", tmp_path)
    assert metrics["small.b4.recovered"] == metrics["small.b8.recovered"] == 1
    assert metrics["small.b8.counted"] == metrics["small_conv.b3.counted"] == 1
    assert metrics["small_conv.b3.psnr"] > 20
    assert metrics["fedavg.small.rate0.01.recovered"] == 1
    assert run("update-networks", tmp_path)[0] == metrics


@pytest.mark.slow
def test_clients(tmp_path):
    metrics, holds = run("update-clients", tmp_path)
    assert holds == {"augmented": True, "augmented-said": True, "adapter-own": True}
    assert metrics["small.b2.published_steps"] > 1
