"""Networks that say the same have the same numbers once their units are aligned."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from exhume.models.hidden_units import HiddenUnits
from exhume.models.mlp import MLP


def disguised(mlp, parameters, key, *, scaled):
    """The same networks, each with its hidden units in another order, and at other scales."""
    generator = key.generator()
    parts = [part.clone() for part in mlp.layout.split(parameters).values()]
    for layer, width in enumerate(mlp.hidden):
        for model in range(len(parameters)):
            order = torch.randperm(width, generator=generator)
            scale = (
                torch.exp(torch.randn(width, generator=generator)) if scaled else torch.ones(width)
            )
            weight, bias, later = (parts[2 * layer + i][model] for i in range(3))
            weight.copy_(weight[order] * scale[:, None])
            bias.copy_(bias[order] * scale)
            later.copy_(later[:, order] / scale)
    return mlp.layout.join(dict(zip(mlp.layout.names, parts, strict=True)))


@pytest.mark.parametrize(
    ("activation", "scaled"), [("relu", True), ("leaky-relu", True), ("elu", False)]
)
def test_a_disguise_is_taken_off(activation, scaled, key):
    mlp = MLP((5,), (7, 6), 3, activation)
    base = mlp.initial(key)
    near = base + 0.02 * torch.randn(4, len(base), generator=key.fold("near").generator())
    units = HiddenUnits(mlp, base)
    hidden = disguised(mlp, near, key.fold("disguise"), scaled=scaled)
    assert not torch.allclose(hidden, near, atol=0.1)
    assert torch.allclose(units.aligned(hidden), units.aligned(near), atol=1e-5)
    x, names = torch.randn(9, 5, generator=key.fold("x").generator()), mlp.layout
    for one, other in zip(units.aligned(hidden), hidden, strict=True):
        answers = [functional_call(mlp.build(), names.split(p), x) for p in (one, other)]
        assert torch.allclose(*answers, atol=1e-5)


def test_the_reference_stays_as_it_is(key):
    mlp = MLP((5,), (7,), 3, "relu")
    base = mlp.initial(key)
    assert torch.allclose(HiddenUnits(mlp, base).aligned(base[None])[0], base, atol=1e-6)
    smooth = MLP((5,), (7,), 3, "elu")
    assert torch.equal(HiddenUnits(smooth, base).aligned(base[None])[0], base)


def test_dead_units_stay_dead(key):
    mlp = MLP((5,), (4,), 3, "relu")
    base = mlp.initial(key)
    dead = base.clone()
    dead[:5] = 0
    found = HiddenUnits(mlp, base).aligned(dead[None])
    assert bool(torch.isfinite(found).all())
