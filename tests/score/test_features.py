from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.features import recognise, score_constant, score_inputs
from exhume.score.intervals import clopper_pearson
from exhume.score.measures import affine_fitted, psnr, ssim


def found(images):
    return Reconstruction(images[:, None], torch.zeros(len(images), 1), Status(Outcome.CONVERGED))


def test_brightness_and_contrast_do_not_count_after_the_fit(key):
    truth = torch.rand(4, 1, 8, 8, generator=key.generator())
    secret = Secret(Records(truth, torch.zeros(4, dtype=torch.long), ("a",)))
    scores = score_inputs(
        secret, found(0.2 * truth + 0.3), lambda a, b: (a - b).abs().mean((1, 2, 3))
    )
    assert float(scores.each["mse"].min()) > 0.01
    assert float(scores.each["affine_mse"].max()) < 1e-12
    assert float(scores.each["affine_ssim"].min()) > 0.999
    assert float(scores.each["lpips"].min()) > 0.1 > 1e-5 > float(scores.each["affine_lpips"].max())
    assert scores.metrics("row")["row.mse"] == pytest.approx(float(scores.each["mse"].mean()))


def test_the_fit_is_least_squares(key):
    generator = key.generator()
    drawn, truth = (torch.rand(3, 1, 4, 4, generator=generator) for _ in range(2))
    fitted = affine_fitted(drawn, truth)
    for a, b, f in zip(drawn, truth, fitted, strict=True):
        columns = torch.stack([a.flatten(), torch.ones(16)], 1).double()
        naive = columns @ torch.linalg.lstsq(columns, b.flatten()[:, None].double()).solution
        torch.testing.assert_close(f.flatten().double(), naive[:, 0], atol=1e-6, rtol=0)


def test_a_constant_image_gains_nothing_but_its_level(key):
    truth = torch.rand(3, 1, 8, 8, generator=key.generator())
    secret = Secret(Records(truth, torch.zeros(3, dtype=torch.long), ("a",)))
    scores = score_constant(secret, torch.zeros(1, 8, 8), None)
    expected = truth.flatten(1).var(1, correction=0).double()
    torch.testing.assert_close(scores.each["affine_mse"], expected, atol=1e-6, rtol=0)
    assert "lpips" not in scores.each
    each = scores.each
    assert float(each["mse"].mean()) == pytest.approx(float(truth.square().mean()))
    level = truth.mean((1, 2, 3), keepdim=True).expand_as(truth)
    torch.testing.assert_close(each["affine_psnr"], psnr(level, truth), atol=1e-4, rtol=0)
    torch.testing.assert_close(each["affine_ssim"], ssim(level, truth), atol=1e-4, rtol=0)


def test_a_distance_sees_every_pair_once_and_in_order(key):
    """Two hundred and fifty pairs are given in parts, clipped to what an image can show."""
    truth = torch.rand(250, 1, 2, 2, generator=key.generator())
    secret = Secret(Records(truth, torch.zeros(250, dtype=torch.long), ("a",)))
    sizes = []

    def distance(a, b):
        sizes.append(len(a))
        return (a - b).abs().amax((1, 2, 3))

    scores = score_inputs(secret, found(truth + 0.5), distance)
    assert sizes[:3] == [100, 100, 50]
    expected = ((truth + 0.5).clamp(0, 1) - truth).amax((1, 2, 3)).double()
    torch.testing.assert_close(scores.each["lpips"], expected)


def test_answers_to_other_inputs_are_refused():
    secret = Secret(Records(torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.long), ("a",)))
    with pytest.raises(ExhumeError, match="1 candidates for each of 3 releases do not answer 2"):
        score_inputs(secret, found(torch.zeros(3, 1, 8, 8)), None)
    empty = Reconstruction(torch.zeros(2, 0, 1, 8, 8), torch.zeros(2, 0), Status(Outcome.CONVERGED))
    with pytest.raises(ExhumeError, match="0 candidates for each of 2 releases do not answer 2"):
        score_inputs(secret, empty, None)


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
