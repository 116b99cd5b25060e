from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity

from exhume.core.contract import ExhumeError
from exhume.score.measures import (
    STATISTICS,
    background_variance,
    colourfulness,
    directions,
    mae,
    mse,
    psnr,
    ssim,
    total_variation,
)


def test_planted_distances():
    truth, found = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    found[0, 0, 0, 0] = 0.5
    assert mse(found, truth).tolist() == pytest.approx([0.0625, 0])
    assert mae(found, truth).tolist() == pytest.approx([0.125, 0])
    assert psnr(found, truth).tolist() == pytest.approx([12.0412, 100.0], abs=1e-4)


def test_distances_of_records_of_any_size(key):
    found, truth = torch.rand(2, 3, 2, 5, generator=key.generator())
    for name, each in ((mse, torch.square), (mae, torch.abs)):
        naive = [float(each(a - b).mean()) for a, b in zip(found, truth, strict=True)]
        assert name(found, truth).tolist() == pytest.approx(naive)
    assert psnr(found, found).tolist() == [100.0] * 3
    assert psnr(found, found + 1e-6).max() == 100.0


@pytest.mark.parametrize(
    ("shape", "side"), [((5, 9), 5), ((8, 6), 5), ((4, 12), 3), ((16, 16), 11)]
)
def test_ssim_of_small_images_window_by_window(shape, side, key):
    found, truth = torch.rand(2, 1, 2, *shape, generator=key.generator(), dtype=torch.float64)
    line = np.exp(-0.5 * ((np.arange(side) - side // 2) / 1.5) ** 2)
    weights = np.outer(line, line) / np.outer(line, line).sum()
    values = []
    for x, y in zip(found[0].numpy(), truth[0].numpy(), strict=True):
        for i in range(shape[0] - side + 1):
            for j in range(shape[1] - side + 1):
                a, b = x[i : i + side, j : j + side], y[i : i + side, j : j + side]
                mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
                spread = (weights * ((a - mean_a) ** 2 + (b - mean_b) ** 2)).sum()
                together = (weights * (a - mean_a) * (b - mean_b)).sum()
                values.append(
                    (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
                    * (2 * together + 9e-4) / (spread + 9e-4)
                )  # fmt: skip
    assert ssim(found, truth).item() == pytest.approx(np.mean(values), abs=1e-12)


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


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3))
def test_ssim_of_any_size_is_one_for_equals_and_below_otherwise(h, w, c):
    image = torch.rand(2, c, h, w, dtype=torch.float64)
    assert torch.allclose(ssim(image, image), torch.ones(2, dtype=torch.float64))
    assert (ssim(image, 1 - image) < 1).all()


def test_directions(key):
    flat = torch.rand(3, 6, generator=key.generator(), dtype=torch.float64)
    flat[2] = 0.25
    units = directions(flat)
    for row, unit in zip(flat[:2], units, strict=False):
        torch.testing.assert_close(unit, (row - row.mean()) / (row - row.mean()).norm())
    assert units[2].tolist() == [0] * 6


@pytest.fixture
def images(key):
    return torch.rand(3, 3, 12, 14, generator=key.generator())


def naive(image):
    """One image (c, h, w), pixel by pixel."""
    c, h, w = image.shape
    edge = [(i, j) for i in range(h) for j in range(w) if min(i, j, h - 1 - i, w - 1 - j) < 4]
    down = [
        abs(image[k, i + 1, j] - image[k, i, j])
        for k in range(c)
        for i in range(h - 1)
        for j in range(w)
    ]
    across = [
        abs(image[k, i, j + 1] - image[k, i, j])
        for k in range(c)
        for i in range(h)
        for j in range(w - 1)
    ]
    red, green, blue = image
    rg, yb = red - green, (red + green) / 2 - blue
    return {
        "background variance": np.mean([np.var([channel[p] for p in edge]) for channel in image]),
        "total variation": np.mean(down) + np.mean(across),
        "colourfulness": np.hypot(rg.std(), yb.std()) + 0.3 * np.hypot(rg.mean(), yb.mean()),
        "contrast": image.mean(0).std(),
    }


def test_against_pixel_by_pixel(images):
    for index, image in enumerate(images.double().numpy()):
        for name, expected in naive(image).items():
            assert float(STATISTICS[name](images)[index]) == pytest.approx(expected), name


def test_the_smallest_image_with_a_background():
    image = torch.zeros(1, 1, 9, 9)
    image[:, :, 4, 4] = 1  # the only pixel that is none of it
    assert float(background_variance(image)) == 0
    image[:, :, 3, 4] = 1
    assert float(background_variance(image)) == pytest.approx(1 / 80 * 79 / 80)


def test_a_thing_on_a_constant_background_has_none_of_its_own(images):
    plain = torch.full((1, 3, 12, 12), 0.3)
    thing = plain.clone()
    thing[:, :, 4:8, 4:8] = 0.9
    assert float(background_variance(thing)) == pytest.approx(0, abs=1e-12)
    assert float(total_variation(plain)) == 0 < float(total_variation(thing))
    assert float(colourfulness(thing)) == pytest.approx(0, abs=1e-7)  # grey


def test_errors(images):
    with pytest.raises(ExhumeError, match="images: 8x14 given, larger than 8 needed"):
        background_variance(images[:, :, :8])
    with pytest.raises(ExhumeError, match="images: 1 channels given, 3 needed"):
        colourfulness(images[:, :1])
