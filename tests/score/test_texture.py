from __future__ import annotations

import numpy as np
import pytest
import torch

from exhume.core.contract import ExhumeError
from exhume.score.texture import STATISTICS, background_variance, colourfulness, total_variation


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
