"""What a client did to its images before it trained on them, found from what is proved."""

from __future__ import annotations

import pytest
import torch

from exhume import readers
from exhume.auditing.augmented import Transform, compare_with_named


def moved(images, down, right):
    """Shifted, with zeros at the edge."""
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    height, width = images.shape[-2:]
    return padded[..., 4 - down : 4 - down + height, 4 - right : 4 - right + width]


@pytest.fixture(scope="module")
def digits():
    return readers.load("digits").inputs[:40]


def test_each_image_has_its_own_transform(digits):
    made = torch.cat(
        [
            digits[:1],
            digits[1:2].flip(-1),
            moved(digits[2:3], 1, -2),
            moved(digits[3:4], 0, 1).flip(-1),
        ]
    )
    found = compare_with_named(made, digits)
    assert found.transforms == (
        Transform(),
        Transform(flipped=True),
        Transform(down=1, right=-2),
        Transform(flipped=True, right=-1),
    )
    assert not found.as_named
    assert "2 are flipped" in found.sentence
    assert "2 are shifted by up to 2 pixels" in found.sentence


def test_usual_normalisations_are_named(digits):
    colours = digits[:3].repeat(1, 3, 1, 1) * torch.tensor([1.0, 0.7, 0.4])[:, None, None]
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    (first, *_) = compare_with_named(((colours - mean) / deviation).flip(-1), colours).transforms
    assert first == Transform(flipped=True, normalised="the numbers of ImageNet")
    grey = compare_with_named((digits[:2] - 0.5) / 0.5, digits)
    assert {one.normalised for one in grey.transforms} == {"mean and deviation of 0.5"}


def test_records_as_named_and_strangers(digits, key):
    generator = key.generator()
    near = digits[:4] + 0.01 * torch.randn(4, 1, 8, 8, generator=generator)
    assert compare_with_named(near, digits).as_named
    assert compare_with_named(-digits[:4], digits).as_named  # the sign is not always known
    assert compare_with_named(near, digits).sentence == ""
    strange = compare_with_named(torch.rand(2, 1, 8, 8, generator=generator), digits)
    assert strange.transforms == (None, None)
    assert "2 are none of those named" in strange.sentence


def test_vectors_are_the_named_ones_or_not(key):
    named = torch.randn(6, 5, generator=key.generator())
    assert compare_with_named(named[2:4], named).as_named
    assert compare_with_named(named[:1] + 3, named).transforms == (None,)
