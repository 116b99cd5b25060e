from __future__ import annotations

import math

import pytest
import torch

from exhume.core.contract import ExhumeError, Key
from exhume.models.reconstructors import Deconv, Dense, patchgan


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_sizes_are_those_of_the_tables(key):
    dense = Dense().build(7960, (1, 28, 28), key)  # Balle22: 9.7M
    assert count(dense) == 7961 * 1000 + 1001 * 1000 + 1001 * 784 == 9_746_784
    small = Deconv().build(10, (3, 32, 32), key)
    rest = 64 * 32 * 25 + 32 + 32 * 3 * 25 + 3
    assert count(small) == 11 * 4096 + rest  # with 55,208 inputs: 226M
    assert 55_209 * 4096 + rest == pytest.approx(226e6, rel=0.01)
    assert [tuple(p.shape) for p in patchgan((3, 32, 32), key).parameters() if p.ndim > 1] == [
        (64, 3, 4, 4),
        (128, 64, 4, 4),
        (256, 128, 4, 4),
        (512, 256, 4, 4),
        (1, 512, 4, 4),
    ]


@pytest.mark.parametrize("network", [Dense((7,)), Deconv((4, 5)), Dense((), "linear")])
def test_records_come_out(network, key):
    found = network.build(6, (3, 8, 12), key)(torch.randn(2, 6))
    assert found.shape == (2, 3, 8, 12)
    if network.output == "sigmoid":
        assert found.min() > 0
        assert found.max() < 1


def test_patches(key):
    assert patchgan((3, 32, 32), key)(torch.rand(2, 3, 32, 32)).shape == (2, 1, 2, 2)
    assert patchgan((1, 24, 28), key)(torch.rand(2, 1, 24, 28)).shape[2] == 1
    with pytest.raises(ExhumeError, match="sides of at least 24"):
        patchgan((3, 23, 32), key)


def test_drawn_from_the_key_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (Dense((50,)).build(300, (4,), Key.from_seed(s)) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)
    assert float(first[0].weight.std()) == pytest.approx(1 / math.sqrt(300), rel=0.02)
    assert not first[0].bias.any()


def test_signal_keeps_its_size_through_a_transposed_convolution(key):
    layer = Deconv((64, 32)).build(4, (3, 32, 32), key)[3]
    inner = layer(torch.randn(8, 64, 8, 8, generator=key.generator()))[:, :, 4:-4, 4:-4]
    assert float(inner.std()) == pytest.approx(1, rel=0.15)


def test_errors(key):
    with pytest.raises(ExhumeError, match="output: 'tanh' is not one of sigmoid, linear"):
        Dense(output="tanh")
    with pytest.raises(ExhumeError, match="hidden: widths must be at least 1"):
        Dense((0,))
    with pytest.raises(ExhumeError, match="channels: must be at least 1"):
        Deconv((64, 0))
    with pytest.raises(ExhumeError, match="h and w multiples of 4"):
        Deconv().build(4, (3, 30, 32), key)
