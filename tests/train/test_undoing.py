"""Steps undone: the sums behind them are those that per-record gradients, clipped one by one, add up to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from exhume.attacks.informed.prior_aware import clipped_sum, projected, sums_behind
from exhume.core.contract import NotApplicable
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.train.dp import NOT_PRIVATE, Privacy
from exhume.train.functional import record_gradients
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch


def naive(architecture, flat, records, clip):
    """(n, p): one backward pass a record."""
    module, rows = architecture.build(), []
    for one, label in zip(records.inputs, records.labels, strict=True):
        leaf = flat.clone().requires_grad_()
        out = functional_call(module, architecture.layout.split(leaf), (one[None],))
        (gradient,) = torch.autograd.grad(F.cross_entropy(out, label[None]), leaf)
        rows.append(gradient * min(1.0, clip / float(gradient.norm())))
    return torch.stack(rows)


NETWORKS = [MLP((1, 8, 8), (5,), 3), CNN((1, 16, 16), hidden=(6,), outputs=3)]


@pytest.mark.parametrize("network", NETWORKS, ids=["mlp", "cnn"])
@pytest.mark.parametrize("clip", [0.3, 1e9])
def test_gradients_of_records_and_their_sum(network, clip, key, make_records):
    records = make_records(6, network.input_shape, 3, key)
    models = torch.stack([network.initial(key.fold(i)) for i in range(2)])
    expected = torch.stack([naive(network, flat, records, clip) for flat in models])
    whole = torch.stack([naive(network, flat, records, float("inf")) for flat in models])
    found = record_gradients(network, models, records)
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)
    recipe = FullBatch(network, Descent(7), Privacy(clip, 3.0))
    torch.testing.assert_close(
        clipped_sum(recipe, models, records), expected.sum(1), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize(
    "network", [*NETWORKS, MLP((1, 8, 8), (7, 4), 3)], ids=["mlp", "cnn", "deep"]
)
@pytest.mark.parametrize("privacy", [Privacy(0.3), NOT_PRIVATE], ids=str)
def test_products_with_a_direction(network, privacy, key, make_records):
    records = make_records(6, network.input_shape, 3, key)
    models = torch.stack([network.initial(key.fold(i)) for i in range(2)])
    directions = torch.randn(models.shape, generator=key.generator())
    each = torch.stack([naive(network, flat, records, privacy.clip) for flat in models])
    along, squared = projected(network, models, directions, records, privacy)
    torch.testing.assert_close(squared, each.square().sum(2), rtol=1e-4, atol=1e-6)
    expected = (each * directions[:, None]).sum(2)
    torch.testing.assert_close(along, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_the_sum_behind_every_step(decay, key, make_records):
    network = NETWORKS[0]
    records, extra = make_records(9, (1, 8, 8), 3, key), make_records(2, (1, 8, 8), 3, key.fold(1))
    recipe = FullBatch(network, Descent(4, 0.3, 0.8, decay), Privacy(0.5))
    seen = []
    final = recipe.fit(
        network.initial(key), records, extra.one_each(), key, watch=lambda p: seen.append(p.clone())
    )
    trail = torch.stack(seen, dim=1)
    found = sums_behind(recipe.descent, trail, final, len(records) + 1)
    for model in range(2):
        own = records.with_extra(extra.one_each(), model)
        for step in range(4):
            expected = naive(network, trail[model, step], own, 0.5).sum(0)
            torch.testing.assert_close(found[model, step], expected, rtol=1e-3, atol=1e-4)


def test_noise_is_part_of_the_sum(key, make_records):
    network = NETWORKS[0]
    records = make_records(9, (1, 8, 8), 3, key)
    recipe = FullBatch(network, Descent(200, 0.1, 0.5), Privacy(0.1, 2.0))
    seen = []
    final = recipe.fit(
        network.initial(key),
        records,
        records.none_for(1),
        key,
        watch=lambda p: seen.append(p.clone()),
    )
    trail = torch.stack(seen, dim=1)
    sums = sums_behind(recipe.descent, trail, final, len(records))[0]
    noise = sums - clipped_sum(recipe, trail[0], records)
    assert abs(float(noise.std()) / 0.2 - 1) < 0.02
    assert abs(float(noise.mean())) < 0.01


def test_adam_cannot_be_undone():
    with pytest.raises(NotApplicable, match="optimiser: 3 steps, rate 0.001, Adam"):
        sums_behind(Adam(3), torch.zeros(1, 3, 2), torch.zeros(1, 2), 4)
