from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Outcome, Reconstruction, Records, Secret, Status
from exhume.score.features import score_constant, score_inputs
from exhume.score.pixels import affine_fitted, psnr
from exhume.score.structure import ssim


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
    with pytest.raises(ExhumeError, match="3 releases answered, 2 inputs were sent"):
        score_inputs(secret, found(torch.zeros(3, 1, 8, 8)), None)
    empty = Reconstruction(torch.zeros(2, 0, 1, 8, 8), torch.zeros(2, 0), Status(Outcome.CONVERGED))
    with pytest.raises(ExhumeError, match="2 releases answered, 2 inputs were sent"):
        score_inputs(secret, empty, None)
