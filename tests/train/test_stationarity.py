"""Against the definition: gradients of each record's outputs by all parameters, formed one by one."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from exhume.models.mlp import MLP
from exhume.train.margin import _layers, directions


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_inner_products_of_the_records_terms_with_biases_everywhere(activation, key):
    mlp = MLP((5,), (12, 9), 3, activation, "torch")
    flat = mlp.initial(key).double() * 2
    inputs = torch.randn(6, 5, generator=key.generator(), dtype=torch.float64)
    labels = torch.arange(6) % 3
    network = mlp.matrices(flat)
    entering, outputs = network.forward(inputs)
    ways = directions("multiclass", outputs, labels, "softmax")
    module = mlp.build().double()

    def pulled_output(parameters, index):
        out = functional_call(module, mlp.layout.split(parameters), (inputs[index : index + 1],))
        return (out[0] * ways[index]).sum()

    terms = torch.stack([torch.func.grad(pulled_output)(flat, index) for index in range(6)])
    grams, pulled, norms = _layers(
        network, inputs, entering, outputs, labels, "multiclass", "softmax"
    )
    torch.testing.assert_close(torch.stack(grams).sum(0), terms @ terms.T)
    torch.testing.assert_close(torch.stack(pulled).sum(0), terms @ flat)
    assert sum(norms) == pytest.approx(float(flat.square().sum()))
