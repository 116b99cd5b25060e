from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity

from exhume.score.pixels import mae, mse, psnr
from exhume.score.structure import ssim


def test_planted_distances():
    truth, found = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    found[0, 0, 0, 0] = 0.5
    assert mse(found, truth).tolist() == pytest.approx([0.0625, 0])
    assert mae(found, truth).tolist() == pytest.approx([0.125, 0])
    assert psnr(found, truth).tolist() == pytest.approx([12.0412, 100.0], abs=1e-4)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 11, 17)])
def test_ssim_equals_scikit_image(shape, key):
    pair = torch.rand(2, 3, *shape, generator=key.generator(), dtype=torch.float64)
    found, truth = pair[0], (0.7 * pair[0] + 0.3 * pair[1])
    scores = ssim(found, truth)
    for i in range(3):
        expected = structural_similarity(
            found[i].numpy(),
            truth[i].numpy(),
            data_range=1,
            gaussian_weights=True,
            use_sample_covariance=False,
            channel_axis=0,
        )
        assert scores[i].item() == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3))
def test_ssim_of_any_size_is_one_for_equals_and_below_otherwise(h, w, c):
    image = torch.rand(2, c, h, w, dtype=torch.float64)
    assert torch.allclose(ssim(image, image), torch.ones(2, dtype=torch.float64))
    assert (ssim(image, 1 - image) <= 1).all()
