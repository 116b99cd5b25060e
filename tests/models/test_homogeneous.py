from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from exhume.core.contract import Architecture, ExhumeError
from exhume.models.mlp import HomogeneousMLP


def test_scaling_the_parameters_scales_the_outputs_by_the_power_of_the_depth(key):
    mlp = HomogeneousMLP((2, 3), (7, 5), 4)
    assert isinstance(mlp, Architecture)
    flat = mlp.initial(key).double()
    inputs = torch.randn(6, 2, 3, generator=key.generator(), dtype=torch.float64)

    def outputs(parameters):
        return functional_call(mlp.build().double(), mlp.layout.split(parameters), (inputs,))

    # homogeneous in the parameters, the first bias scaling with the first layer
    torch.testing.assert_close(outputs(2 * flat), 8 * outputs(flat))
    entering, by_hand = mlp.matrices(flat).forward(inputs.flatten(1))
    torch.testing.assert_close(by_hand, outputs(flat))
    assert [tuple(z.shape) for z in entering] == [(6, 7), (6, 5)]


def test_matrices_and_join_are_inverse(key):
    mlp = HomogeneousMLP((3,), (4,), 2)
    flat = mlp.initial(key)
    assert torch.equal(mlp.join(mlp.matrices(flat)), flat)
    assert mlp.layout.names == ("fc1.weight", "fc1.bias", "fc2.weight")


def test_the_first_layer_can_start_small(key):
    mlp = HomogeneousMLP((100,), (200,), 2, first_scale=1e-4)
    network = mlp.matrices(mlp.initial(key))
    assert float(network.first.std()) == pytest.approx(1e-4, rel=0.05)
    assert float(network.bias.std()) == pytest.approx(1e-4, rel=0.3)
    assert float(network.later[0].std()) == pytest.approx(1 / (200 * 3) ** 0.5, rel=0.1)
    assert "N(0, 0.0001²)" in str(mlp)


def test_it_says_what_is_wrong():
    with pytest.raises(ExhumeError, match="at least one hidden layer"):
        HomogeneousMLP((3,), (), 2)
    with pytest.raises(ExhumeError, match="widths must be at least 1"):
        HomogeneousMLP((3,), (0,), 2)
    with pytest.raises(ExhumeError, match="first_scale: 0.0 given"):
        HomogeneousMLP((3,), (2,), 2, first_scale=0.0)
