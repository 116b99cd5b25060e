from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call

from exhume.core.contract import ExhumeError, Layout
from exhume.models.activations import ACTIVATIONS, activation
from exhume.models.matrices import DenseNetwork
from exhume.models.mlp import MLP


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_are_derivatives(name):
    act = activation(name)
    x = torch.linspace(-3.05, 3, 41, dtype=torch.float64, requires_grad=True)
    y = act.apply(x)
    (expected,) = torch.autograd.grad(y.sum(), x)
    found = act.slope(x.detach(), y.detach())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates_have_derivatives_and_kinks_are_smoothed(name):
    act = activation(name)
    x = torch.linspace(-3.05, 3, 41, dtype=torch.float64, requires_grad=True)
    gate, curve = act.gated(x, act.apply(x), 7.0)
    (expected,) = torch.autograd.grad((gate + 0 * x).sum(), x)
    torch.testing.assert_close(curve, expected)
    far = (x - act.kink[0]).abs() > 2.5  # there a smoothed kink is none
    torch.testing.assert_close(gate[far], act.slope(x, act.apply(x))[far], rtol=0, atol=1e-6)


def test_there_are_the_twelve_of_table_three():
    assert len(ACTIVATIONS) == 12
    torch.testing.assert_close(
        activation("floor").apply(torch.tensor([-2.0, -0.3, 1.0])), torch.tensor([-0.5, -0.3, 1.0])
    )


def test_an_unknown_activation_is_named():
    with pytest.raises(ExhumeError, match="activation: 'rulu' is not one of relu, floor"):
        MLP((4,), (3,), 2, activation="rulu")


def test_bad_widths_and_inits_are_refused():
    with pytest.raises(ExhumeError, match="widths must be at least 1"):
        MLP((4,), (0,), 2)
    with pytest.raises(ExhumeError, match="init: 'zeros' is not one of"):
        MLP((4,), (3,), 2, init="zeros")


@pytest.mark.parametrize("init", ["lecun", "torch"])
def test_layout_module_and_initial_agree(key, init):
    mlp = MLP((1, 6, 5), (7, 4), 3, init=init)
    module = mlp.build()
    assert Layout.of(module) == mlp.layout
    parts = mlp.layout.split(mlp.initial(key))
    spread = float(parts["fc1.weight"].std()) * math.sqrt(30)
    assert spread == pytest.approx(1.0 if init == "lecun" else 1 / math.sqrt(3), rel=0.2)
    assert torch.equal(mlp.initial(key), mlp.initial(key))
    assert module(torch.zeros(2, 1, 6, 5)).shape == (2, 3)


def test_balle22_mnist_has_about_8k_parameters():
    assert MLP((1, 28, 28), (10,), 10).layout.size == 7960


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_its_layers_as_matrices(activation, key):
    mlp = MLP((2, 3), (7, 5), 4, activation, "torch")
    assert isinstance(mlp, DenseNetwork)
    flat = mlp.initial(key).double()
    layers = mlp.matrices(flat)
    assert torch.equal(mlp.join(layers), flat)
    inputs = torch.randn(6, 2, 3, generator=key.generator(), dtype=torch.float64)
    module = functional_call(mlp.build().double(), mlp.layout.split(flat), (inputs,))
    entering, outputs = layers.forward(inputs.flatten(1))
    torch.testing.assert_close(outputs, module)
    assert [tuple(z.shape) for z in entering] == [(6, 7), (6, 5)]
    assert layers.to(torch.float32).later_biases[1].dtype == torch.float32


def test_without_a_hidden_layer_there_are_no_matrices(key):
    with pytest.raises(ExhumeError, match="at least one hidden layer"):
        MLP((3,), (), 2).matrices(torch.zeros(8))
