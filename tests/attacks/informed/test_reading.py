from __future__ import annotations

import pytest
import torch

from exhume.attacks.informed.closed_form import READINGS, WeightReading
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP

NETWORKS = [MLP((6,), (4, 3), 2), CNN((1, 6, 6), (2,), (3,), (1,), (4,), 3)]


@pytest.fixture(params=NETWORKS, ids=["mlp", "cnn"])
def layout(request):
    return request.param.layout


@pytest.fixture
def change(layout, key):
    return torch.randn(5, layout.size, generator=key.generator(), dtype=torch.float64)


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.name)
def test_the_size_of_the_change_does_not_matter(reading, layout, change):
    base = torch.zeros(layout.size, dtype=torch.float64)
    once, thrice = (reading.apply(factor * change, base, layout) for factor in (1.0, 3.0))
    torch.testing.assert_close(once, thrice)


def test_a_row_speaks_whatever_its_size(layout, change):
    base = torch.zeros(layout.size, dtype=torch.float64)
    reading = WeightReading("rows", 0.0)
    before = reading.apply(change, base, layout)
    parts = layout.split(change.clone())
    name = layout.names[0].rpartition(".")[0]
    for kind in ("weight", "bias"):
        parts[f"{name}.{kind}"][:, 1] *= 1e-3  # the second neuron's copy is fainter
    torch.testing.assert_close(reading.apply(layout.join(parts), base, layout), before)


def test_a_row_that_did_not_change_is_silent(layout, change):
    parts = layout.split(change.clone())
    name = layout.names[0].rpartition(".")[0]
    for kind in ("weight", "bias"):
        parts[f"{name}.{kind}"][:, 0] = 0
    base = torch.zeros(layout.size, dtype=torch.float64)
    for reading in READINGS:
        read = layout.split(reading.apply(layout.join(parts), base, layout))
        assert not read[f"{name}.weight"][:, 0].any()
        assert read[f"{name}.weight"][:, 1].any()


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.name)
def test_a_model_that_did_not_change_reads_as_zeros(reading, layout):
    base = torch.ones(layout.size)
    assert not reading.apply(base.expand(2, -1), base, layout).any()


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.name)
def test_models_do_not_influence_each_other(reading, layout, change):
    base = torch.zeros(layout.size, dtype=torch.float64)
    torch.testing.assert_close(
        reading.apply(change[2:3], base, layout), reading.apply(change, base, layout)[2:3]
    )
