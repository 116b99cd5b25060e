"""The adjoint of training against autograd and against training again with a push."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian

from exhume.core.contract import Key, Records
from exhume.models.mlp import MLP
from exhume.train.influence import (
    _hessian_product,
    _Shared,
    answer,
    pushes,
    trajectories,
)
from exhume.train.optimisers import Descent
from exhume.train.recipe import descend
from exhume.train.unrolled import smooth_gates


def loss_of(mlp: MLP, records: Records):
    module = mlp.build()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            functional_call(module, mlp.layout.split(flat), (records.inputs,)), records.labels
        )

    return loss


@pytest.fixture
def records(make_records, key):
    made = make_records(9, (4,), 3, key)
    return Records(made.inputs.double(), made.labels, made.classes)


@pytest.mark.parametrize("hidden", [(3,), (3, 2)])
@pytest.mark.parametrize("name", ["elu", "tanh", "gelu", "celu", "selu", "silu", "softplus"])
def test_hessian_products_equal_autograd(hidden, name, records, key):
    mlp = MLP((4,), hidden, 3, activation=name)
    flat = mlp.initial(key).double()
    directions = torch.randn(5, mlp.layout.size, generator=key.generator(), dtype=torch.float64)
    found = _hessian_product(
        list(mlp.layout.split(flat).values()),
        list(mlp.layout.split(directions).values()),
        _Shared.of(mlp, records),
    )
    expected = directions @ hessian(loss_of(mlp, records))(flat)
    torch.testing.assert_close(torch.cat([part.flatten(1) for part in found], 1), expected)


@pytest.mark.parametrize("name", ["relu", "leaky-relu"])
def test_records_near_a_kink_are_counted_by_a_kernel(name, records, key):
    """As those gates do that are smooth in second derivatives only."""
    mlp = MLP((4,), (3, 2), 3, activation=name)
    module, gates = smooth_gates(mlp.build(), 0.1)
    assert gates == 2
    flat = mlp.initial(key).double().requires_grad_()
    direction = torch.randn(1, mlp.layout.size, generator=key.generator(), dtype=torch.float64)
    found = _hessian_product(
        list(mlp.layout.split(flat.detach()).values()),
        list(mlp.layout.split(direction).values()),
        _Shared.of(mlp, records),
    )
    outputs = functional_call(module, mlp.layout.split(flat), (records.inputs,))
    loss = F.cross_entropy(outputs, records.labels)
    (slope,) = torch.autograd.grad(loss, flat, create_graph=True)
    (expected,) = torch.autograd.grad(slope @ direction[0], flat)
    torch.testing.assert_close(torch.cat([part.flatten() for part in found]), expected)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_answers_predict_what_a_small_push_does(decay, records, key):
    mlp, descent = MLP((4,), (3,), 3), Descent(6, 0.4, 0.8, decay)
    initial = mlp.initial(key).double()
    path, final = trajectories(mlp, descent, initial, records, records.none_for(1))
    generator = key.fold("push").generator()
    questions = torch.randn(4, mlp.layout.size, generator=generator, dtype=torch.float64)
    push = torch.randn(6, mlp.layout.size, generator=generator, dtype=torch.float64)
    everything = torch.eye(6, dtype=torch.float64)
    found = answer(mlp, descent, path[:, 0], records, questions=questions, basis=everything)
    weights = found.first.transpose(1, 2).flatten(2)  # the basis is the steps themselves
    adjoint = torch.cat([weights, found.rest], 2)  # (steps, q, p)
    predicted = torch.einsum("tqp,tp->q", adjoint, push)

    gradient, size = grad(loss_of(mlp, records)), 1e-6
    theta, velocity = initial.clone(), torch.zeros_like(initial)
    for t in range(6):
        velocity = 0.8 * velocity + gradient(theta) + decay * theta + size * push[t]
        theta = theta - 0.4 * velocity
    torch.testing.assert_close(
        questions @ (theta - final[0]) / size, predicted, rtol=1e-4, atol=1e-4
    )


def test_trajectories_start_at_the_start_and_end_where_training_ends(records, key):
    mlp, descent = MLP((4,), (3,), 3), Descent(steps=5)
    initial = mlp.initial(key).double()
    path, final = trajectories(mlp, descent, initial, records, records[:2].one_each())
    assert path.shape == (5, 2, mlp.layout.size)
    torch.testing.assert_close(path[0], initial.expand(2, -1))
    torch.testing.assert_close(
        final, descend(mlp, descent, initial, records, records[:2].one_each())
    )
    torch.testing.assert_close(
        path[4], descend(mlp, Descent(steps=4), initial, records, records[:2].one_each())
    )


@pytest.mark.parametrize("hidden", [(3,), (3, 2)])
def test_pushes_are_the_gradient_of_one_record(hidden, records):
    mlp = MLP((4,), hidden, 3, activation="tanh")
    flat = mlp.initial(Key.from_seed(3)).double()
    expected = mlp.layout.split(grad(loss_of(mlp, records[:1]))(flat))
    layers = mlp.layout.split(flat)
    before = layers["fc1.weight"] @ records.inputs[0] + layers["fc1.bias"]
    onehot = F.one_hot(records.labels[0], 3).double()
    error, rest = pushes(mlp, flat, before, onehot)
    torch.testing.assert_close(torch.outer(error, records.inputs[0]), expected.pop("fc1.weight"))
    torch.testing.assert_close(rest, torch.cat([part.flatten() for part in expected.values()]))
