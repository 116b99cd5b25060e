from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer, Smoothed, smooth
from exhume.core.contract import ExhumeError, Gradient, Knowledge, NotApplicable, Outcome, Weights
from exhume.models.homogeneous import HomogeneousMLP
from exhume.store.shards import NullStore

SHORT = FirstLayer(restarts=1, rank=4, descent=Descent(steps=3))


def test_every_candidate_is_there_as_it_is_and_smoothed(key):
    mlp = HomogeneousMLP((3, 8, 8), (20, 10), 3)
    weights = Weights(mlp.initial(key)[None], mlp.layout)
    knowledge = Knowledge(architecture=mlp)
    plain = SHORT.prepare(knowledge, key=key, store=NullStore()).run(weights)
    both = Smoothed(SHORT).prepare(knowledge, key=key, store=NullStore()).run(weights)
    assert torch.equal(both.candidates[0, 0::2], plain.candidates[0])
    assert torch.equal(both.candidates[0, 1::2], smooth(plain.candidates[0], 1.0))
    assert torch.equal(both.labels[0, 1::2], plain.labels[0])
    assert both.confidence[0].tolist() == sorted(both.confidence[0].tolist(), reverse=True)


def test_smoothing_is_a_gaussian_average_and_keeps_the_range(key):
    image = torch.zeros(1, 1, 15, 15)
    image[0, 0, 7, 7] = 1.0
    soft = smooth(image, 1.0)[0, 0]
    at = torch.arange(-3.0, 4.0)
    line = torch.exp(-0.5 * at**2)
    torch.testing.assert_close(soft[4:11, 4:11], line[:, None] * line)  # 1 in the middle again
    noisy = torch.rand(2, 3, 6, 6, generator=key.generator())
    low, high = smooth(noisy, 2.0).flatten(1).aminmax(dim=1)
    assert (low.tolist(), high.tolist()) == ([0, 0], [1, 1])
    tiny = smooth(torch.rand(1, 1, 2, 2, generator=key.generator()), 5.0)
    assert bool(torch.isfinite(tiny).all())


def test_it_finds_what_white_noise_hides(key):
    """A smooth picture under noise of its own size."""
    small = torch.rand(1, 1, 4, 4, generator=key.generator())
    picture = F.interpolate(small, size=(16, 16), mode="bicubic", align_corners=False)
    centred = picture - picture.mean()
    noise = torch.randn(picture.shape, generator=key.fold("noise").generator())
    noisy = centred + noise * centred.norm() / noise.norm()

    def likeness(image):
        flat = (image - image.mean()).flatten()
        return float(F.cosine_similarity(flat, centred.flatten(), dim=0))

    assert likeness(smooth(noisy, 1.0)) > likeness(noisy) + 0.1


def test_refusals(key):
    with pytest.raises(ExhumeError, match="width: must be above 0"):
        Smoothed(width=0.0)
    flat = HomogeneousMLP((9,), (20, 10), 3)
    with pytest.raises(NotApplicable, match="cannot be smoothed"):
        Smoothed(SHORT).prepare(Knowledge(architecture=flat), key=key, store=NullStore())
    mlp = HomogeneousMLP((1, 3, 3), (20, 10), 3)
    prepared = Smoothed(SHORT).prepare(Knowledge(architecture=mlp), key=key, store=NullStore())
    start = mlp.initial(key)
    found = prepared.run(Gradient(start[None], mlp.layout, start))
    assert found.status.outcome is Outcome.NOT_APPLICABLE
