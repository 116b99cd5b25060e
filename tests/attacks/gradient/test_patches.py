from __future__ import annotations

import pytest
import torch
from planted_gradients import unit_batches
from vision import vision

from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.patches import PatchAttack
from exhume.core.contract import Gradient, Knowledge, NotApplicable, Outcome
from exhume.models.cnn import CNN
from exhume.store.shards import NullStore
from exhume.victims.gradient import release_batches


def read(architecture, key, batch=1, values=None):
    batches = unit_batches(1, batch, (1, 8, 8), 10, key)
    release, _ = release_batches(architecture, architecture.initial(key), batches)
    if values is not None:
        release = Gradient(values(release.values), release.layout, release.at)
    prepared = PatchAttack().prepare(
        Knowledge(architecture=architecture), key=key, store=NullStore()
    )
    return prepared.run(release), batches.inputs[0]


@pytest.mark.parametrize("layer", [False, True])
def test_one_picture_comes_back_patch_by_patch(layer, key):
    found, private = read(vision(layer=layer), key)
    assert found.status.converged
    assert torch.allclose(found.candidates[0], private, atol=1e-3)
    assert found.observed["left_over"] < 1e-5


def test_half_precision_is_allowed_for(key):
    found, private = read(vision(), key, values=lambda v: v.bfloat16().float())
    assert found.status.converged
    assert float((found.candidates[0] - private).norm() / private.norm()) < 0.2


@pytest.mark.parametrize(
    ("architecture", "batch", "why"),
    [
        (vision, 3, "several records behind the update"),
        (lambda: vision(places=False), 1, "no trained vectors of places"),
        (lambda: vision(width=8), 1, "16 places, but where has only 8 numbers for each"),
        (lambda: CNN((1, 8, 8), (4,), (3,), (1,), (8,), 10), 1, "no trained vectors of places"),
    ],
)
def test_what_cannot_be_read_says_why(architecture, batch, why, key):
    found, _ = read(architecture(), key, batch)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert why in found.status.reason


def test_needs_the_architecture(key):
    with pytest.raises(NotApplicable, match="needs the architecture"):
        PatchAttack().prepare(Knowledge(), key=key, store=NullStore())


def test_matching_goes_through_attention(key):
    """Attention has a second derivative only in its plain form."""
    network, batches = vision(), unit_batches(1, 1, (1, 8, 8), 10, key)
    release, _ = release_batches(network, network.initial(key), batches)
    known = Knowledge(architecture=network, batch_size=1)
    few, many = (
        GradientMatching(steps=n, restarts=1, signed=True)
        .prepare(known, key=key, store=NullStore())
        .run(release)
        for n in (1, 40)
    )
    assert many.observed["mismatch"] < 0.5 * few.observed["mismatch"]
    assert many.observed["explained"] > few.observed["explained"]
