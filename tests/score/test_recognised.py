from __future__ import annotations

import pytest
import torch

from exhume.core.contract import Outcome, Reconstruction, Records, Secret, Status
from exhume.score.intervals import clopper_pearson
from exhume.score.pixels import affine_fitted
from exhume.score.recognised import recognise
from exhume.score.structure import ssim


def planted(count, key, *, close):
    """Inputs, and answers of which the first `close` are the truth in other brightness and contrast."""
    truth = torch.rand(count, 1, 16, 16, generator=key.generator())
    found = torch.rand(count, 1, 16, 16, generator=key.fold("found").generator())
    found[:close] = 0.3 + 0.4 * truth[:close]
    records = Records(truth, torch.zeros(count, dtype=torch.int64), ("a",))
    status = Status(Outcome.CONVERGED)
    back = Reconstruction(found[:, None], torch.zeros(count, 1), status)
    return Secret(records), back, truth, found


def affine_ssim(found, truth):
    return ssim(affine_fitted(found, truth), truth)


def scored(secret, back, distance=None):
    return recognise(secret, back, torch.full((1, 16, 16), 0.5), distance=distance)


def test_planted_inputs_are_counted_and_strangers_set_the_bar(key):
    secret, back, truth, found = planted(60, key, close=24)
    result = scored(secret, back)
    assert result.metrics["recognised"] == 24
    assert result.metrics["recognised_share"] == pytest.approx(0.4)
    strangers = [
        float(affine_ssim(found[i : i + 1], truth[j : j + 1])[0])
        for i in range(60)
        for j in [(i - shift) % 60 for shift in range(1, 6)]
    ]
    strangers.sort()
    assert result.metrics["ssim_bar"] == pytest.approx(strangers[297], abs=1e-9)  # of 300, 99%
    bar = result.metrics["ssim_bar"]
    assert result.metrics["stranger_share"] == pytest.approx(
        sum(value > bar + 1e-9 for value in strangers) / 300
    )
    assert result.evidence["null_mse"].tolist() == pytest.approx(
        [float((found[i] - truth[i - 1]).square().mean()) for i in range(60)], rel=1e-4
    )
    low, high = clopper_pearson(24, 60)
    assert result.metrics["recognised_share_low"] == pytest.approx(low)
    assert result.metrics["recognised_share_high"] == pytest.approx(high)
    assert result.metrics["targets"] == 60
    assert result.metrics["affine_ssim"] > 0.39


def test_noise_is_hardly_recognised(key):
    secret, back, _, _ = planted(60, key, close=0)
    assert scored(secret, back).metrics["recognised"] <= 2


def test_inputs_that_are_all_alike_are_not_recognised_by_being_alike(key):
    """Every input is nearly the mean image: a copy of that resembles all and proves nothing."""
    base = torch.rand(1, 16, 16, generator=key.generator())
    truth = (base + 0.01 * torch.rand(60, 1, 16, 16, generator=key.fold(1).generator())).clamp(0, 1)
    records = Records(truth, torch.zeros(60, dtype=torch.int64), ("a",))
    found = base.expand(60, 1, 1, 16, 16).clone()
    back = Reconstruction(found, torch.zeros(60, 1), Status(Outcome.CONVERGED))
    result = recognise(Secret(records), back, base, distance=None)
    assert result.metrics["ssim"] > 0.9
    assert result.metrics["recognised"] == 0  # what equals the mean image is not above it


def test_one_input_has_no_strangers(key):
    secret, back, _, _ = planted(1, key, close=1)
    result = scored(secret, back)
    metrics = result.metrics
    assert (metrics["stranger_share"], metrics["ssim_bar"]) == (0.0, 1.0)
    assert result.evidence["null_mse"].tolist() == [0.0]
    secret, back, truth, found = planted(3, key, close=1)  # two strangers each, every one once
    bars = [affine_ssim(found, truth.roll(shift, 0)) for shift in (1, 2)]
    assert scored(secret, back).metrics["ssim_bar"] == pytest.approx(float(torch.cat(bars).max()))


def test_evidence_and_a_perceptual_distance(key):
    secret, back, truth, _ = planted(20, key, close=5)
    result = scored(secret, back, distance=lambda a, b: (a - b).abs().flatten(1).mean(1))
    assert {"lpips", "affine_lpips", "mean_image_lpips"} <= set(result.metrics)
    assert torch.equal(result.evidence["targets"], truth)
    assert result.evidence["reconstructions"].max() <= 1
    assert all(len(values) == 20 for values in result.evidence.values())
