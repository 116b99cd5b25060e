from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from exhume.attacks.margin.descent import StationarityResidual, span_of
from exhume.models.mlp import MLP, HomogeneousMLP
from exhume.train.margin import stationarity


class SmoothedReLU(torch.autograd.Function):
    """Forward: ReLU; derivative: sigmoid(alpha z), which can itself be differentiated."""

    @staticmethod
    def forward(ctx, z, alpha):
        ctx.save_for_backward(z)
        ctx.alpha = alpha
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx, grad):
        (z,) = ctx.saved_tensors
        return grad * torch.sigmoid(ctx.alpha * z), None


def naive(mlp, parameters, inputs, multipliers, labels, *, head, others, alpha, weights):
    """The parameters' gradient by one create_graph backward, in pixel space, and its distance to them."""
    named = [t.clone().requires_grad_() for t in mlp.layout.split(parameters).values()]
    first, bias, *later = named
    hidden = SmoothedReLU.apply(inputs @ first.T + bias, alpha)
    for matrix in later[:-1]:
        hidden = SmoothedReLU.apply(hidden @ matrix.T, alpha)
    out = hidden @ later[-1].T
    u = wanted_outputs(out, labels, head, others)
    grads = torch.autograd.grad(out, named, multipliers[:, None] * u, create_graph=True)
    wide = (weights[0], weights[0], *weights[1:], *(0.0,) * (len(later) + 1 - len(weights)))
    loss = sum(
        w * (p.detach() - g).square().sum() for w, p, g in zip(wide, named, grads, strict=True)
    )
    return loss / sum(w * p.detach().square().sum() for w, p in zip(wide, named, strict=True))


def wanted_outputs(out, labels, head, others):
    """u of u·Phi, whose gradient is taken; it moves with x only where it is a softmax."""
    if head == "binary":
        return (2 * labels - 1)[:, None].to(out)
    if head == "regression":
        return torch.ones_like(out)
    right = torch.nn.functional.one_hot(labels, out.shape[1]).to(out)
    wrong = out.masked_fill(right.bool(), -torch.inf)
    if others == "softmax":
        return right - torch.softmax(wrong, 1)
    return right - torch.nn.functional.one_hot(wrong.argmax(1), out.shape[1])


CASES = [
    ("multiclass", "softmax", (1.0,), (7, 6)),
    ("multiclass", "max", (1.0,), (7, 6)),
    ("multiclass", "max", (1.0, 1.0, 1.0), (7, 6)),
    ("multiclass", "softmax", (1.0, 0.5, 2.0), (7, 6)),
    ("multiclass", "softmax", (1.0, 0.0, 0.0, 3.0), (7, 6, 5)),
    ("binary", "max", (1.0, 1.0, 1.0), (7, 6)),
    ("binary", "softmax", (1.0,), (9,)),
    ("regression", "max", (1.0, 0.3), (9,)),
]


@pytest.mark.parametrize(("head", "others", "weights", "hidden"), CASES)
def test_loss_and_gradient_agree_with_autograd(head, others, weights, hidden, key):
    classes = 4 if head == "multiclass" else 1
    mlp = HomogeneousMLP((5,), hidden, classes)
    generator = key.fold(head, others).generator()
    parameters = torch.randn(mlp.layout.size, generator=generator, dtype=torch.float64)
    span = span_of(mlp.matrices(parameters), rank=3)  # cut: part of W1 lies outside
    labels = torch.arange(6) % max(classes, 2)
    coordinates = torch.randn(6, 3, generator=generator, dtype=torch.float64).requires_grad_()
    multipliers = torch.rand(6, generator=generator, dtype=torch.float64).requires_grad_()
    problem = StationarityResidual(span, labels, head, others, alpha=3.0, weights=weights)
    wanted = naive(
        mlp,
        parameters,
        coordinates @ span.basis,
        multipliers,
        labels,
        head=head,
        others=others,
        alpha=3.0,
        weights=weights,
    )
    by_c, by_lambda = torch.autograd.grad(wanted, (coordinates, multipliers))
    found = problem.at(coordinates.detach(), multipliers.detach())
    assert found.loss == pytest.approx(wanted.item(), rel=1e-10)
    torch.testing.assert_close(found.coordinates, by_c, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.multipliers, by_lambda, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("activation", ["gelu", "tanh", "elu", "silu"])
def test_smooth_activations_and_biases_agree_with_autograd(activation, key):
    """The first layer's gradient of lambda·u·Phi, by one create_graph backward."""
    mlp = MLP((5,), (7, 6), 4, activation)
    generator = key.generator()
    parameters = torch.randn(mlp.layout.size, generator=generator, dtype=torch.float64)
    span = span_of(mlp.matrices(parameters), rank=3)
    labels = torch.arange(6) % 4
    coordinates = torch.randn(6, 3, generator=generator, dtype=torch.float64).requires_grad_()
    multipliers = torch.rand(6, generator=generator, dtype=torch.float64).requires_grad_()
    named = {k: t.clone().requires_grad_() for k, t in mlp.layout.split(parameters).items()}
    out = functional_call(mlp.build().double(), named, (coordinates @ span.basis,))
    u = wanted_outputs(out, labels, "multiclass", "softmax")
    first = list(named.values())[:2]
    grads = torch.autograd.grad(out, first, multipliers[:, None] * u, create_graph=True)
    wanted = sum((p.detach() - g).square().sum() for p, g in zip(first, grads, strict=True))
    wanted = wanted / sum(p.detach().square().sum() for p in first)
    by_c, by_lambda = torch.autograd.grad(wanted, (coordinates, multipliers))
    found = StationarityResidual(span, labels).at(coordinates.detach(), multipliers.detach())
    assert found.loss == pytest.approx(wanted.item(), rel=1e-10)
    torch.testing.assert_close(found.coordinates, by_c, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.multipliers, by_lambda, rtol=1e-8, atol=1e-10)


def test_single_precision_agrees_to_1e5(key):
    mlp = HomogeneousMLP((20,), (30, 30), 5)
    parameters = mlp.initial(key) * 3
    span = span_of(mlp.matrices(parameters), rank=20)
    labels = torch.arange(10) % 5
    c = torch.randn(10, 20, generator=key.generator())
    lam = torch.rand(10, generator=key.generator())
    single = StationarityResidual(span, labels, weights=(1.0, 1.0, 1.0)).at(c, lam)
    wide = span_of(mlp.matrices(parameters.double()), rank=20)
    turn = wide.basis @ span.basis.double().T  # singular vectors may differ by sign
    double = StationarityResidual(wide, labels, weights=(1.0, 1.0, 1.0)).at(
        c.double() @ turn.T, lam.double()
    )
    assert single.loss == pytest.approx(double.loss, rel=1e-5)
    scale = double.coordinates.abs().max()
    gap = single.coordinates.double() - double.coordinates @ turn
    assert float(gap.abs().max() / scale) < 1e-5


def test_the_residual_at_given_records_is_the_least_over_multipliers(key):
    mlp = HomogeneousMLP((5,), (40, 30), 3)
    generator = key.generator()
    network = mlp.matrices(torch.randn(mlp.layout.size, generator=generator, dtype=torch.float64))
    inputs = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(8) % 3
    best = stationarity(network, inputs, labels, "multiclass")
    span = span_of(network, rank=5)
    problem = StationarityResidual(span, labels, alpha=1e6)
    at_best = problem.at(inputs @ span.basis.T, best.multipliers)
    assert at_best.loss == pytest.approx(best.first_layer, rel=1e-8)
    slack = at_best.multipliers
    assert bool((slack >= -1e-8).all())  # the conditions of the non-negative optimum
    assert float((slack * best.multipliers).abs().max()) < 1e-8
