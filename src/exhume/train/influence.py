"""The adjoint of training: how the trained weights answer to a push at any step.

Full-batch descent with momentum is a recursion in the weights. A record that joins the training set
pushes it by its own gradient f_t at every step t. To first order the trained weights move by a linear
map of all pushes, and a question c about the move (a covector) is answered by

    <c, move> = sum_t <a_t, f_t>,     a_t from one backward pass over the steps:
    a_t = m·a_{t+1} - rate·lam_{t+1},   lam_t = lam_{t+1} + H_t a_t,   lam_T = c

with H_t the Hessian of the training loss at step t. Questions are stacked: q of them cost about what
training q models costs, since a Hessian product needs the same two large products as a training step.

Memory: 4·b·q·k·d bytes for the answers to q questions, with b functions of time and k·d weights in the
first layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from exhume.core.contract import Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.train.optimisers import Descent
from exhume.train.recipe import descend

_BLUR = 0.1  # width of a kink, in standard deviations of what enters


@dataclass(frozen=True, eq=False)
class Answers:
    """a_t of q questions: the first layer's weights in b functions of time, all the rest step by step."""

    first: Tensor  # (b, k, q, d): sum over t of basis[t, b] a_t
    rest: Tensor  # (steps, q, p - k·d)
    basis: Tensor  # (steps, b), orthonormal columns


def trajectories(
    mlp: MLP, descent: Descent, initial: Tensor, fixed: Records, extra: Records
) -> tuple[Tensor, Tensor]:
    """Weights before every step (steps, s, p) and after the last (s, p)."""
    seen: list[Tensor] = []
    final = descend(mlp, descent, initial, fixed, extra, watch=seen.append)
    return torch.stack(seen), final


def answer(
    mlp: MLP,
    descent: Descent,
    trajectory: Tensor,
    fixed: Records,
    *,
    questions: Tensor,
    basis: Tensor,
) -> Answers:
    """One backward pass over the steps.

    trajectory: (steps, p) of the model without the record; questions: (q, p); basis: (steps, b).
    """
    layout, batch = mlp.layout, _Shared.of(mlp, fixed)
    d, k = mlp.sizes[:2]
    first = questions.new_zeros(basis.shape[1], k, len(questions), d)
    rest = []
    lam = [part.clone() for part in layout.split(questions).values()]
    pushed = [torch.zeros_like(part) for part in lam]
    for t in range(len(trajectory) - 1, -1, -1):
        for a, toward in zip(pushed, lam, strict=True):
            a.sub_(toward, alpha=descent.rate)
        for weight, total in zip(basis[t].tolist(), first, strict=True):
            total.add_(pushed[0].transpose(0, 1), alpha=weight)
        rest.append(torch.cat([a.flatten(1) for a in pushed[1:]], 1))
        curved = _hessian_product(list(layout.split(trajectory[t]).values()), pushed, batch)
        for toward, a, product in zip(lam, pushed, curved, strict=True):
            toward.add_(product)
            if descent.weight_decay:
                toward.add_(a, alpha=descent.weight_decay)
            a.mul_(descent.momentum)
    return Answers(first, torch.stack(rest[::-1]), basis)


def pushes(mlp: MLP, weights: Tensor, first: Tensor, onehot: Tensor) -> tuple[Tensor, Tensor]:
    """A record's gradient at one model, from the first layer's pre-activation on.

    weights: (p,); first: (k,); onehot: (c,). Returns the error at the first layer (k,), whose product
    with the record is the gradient of the first weights, and all the rest of the gradient (p - k·d,).
    Written for `torch.func` to batch and differentiate.
    """
    outputs = _behind_first(mlp, weights[mlp.sizes[0] * mlp.sizes[1] :], first)
    return pushes_of_error(mlp, weights, first, torch.softmax(outputs, 0) - onehot)


def pushes_of_error(
    mlp: MLP, weights: Tensor, first: Tensor, error: Tensor
) -> tuple[Tensor, Tensor]:
    """`pushes` for an error (c,) of the outputs that is given: linear in it."""
    rest = weights[mlp.sizes[0] * mlp.sizes[1] :]
    back = vjp(partial(_behind_first, mlp), rest, first)[1]
    by_rest, by_first = back(error)
    return by_first, torch.cat([by_first, by_rest[len(by_first) :]])


def _behind_first(mlp: MLP, rest: Tensor, first: Tensor) -> Tensor:
    """(p - k·d,) all but the first weights, and what enters the first activation (k,), to the outputs."""
    act, signal = activation(mlp.activation), first
    shapes = mlp.layout.shapes[1:]
    parts = torch.split(rest, [math.prod(shape) for shape in shapes])[1:]
    layers = [part.view(shape) for part, shape in zip(parts, shapes[1:], strict=True)]
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        signal = weight @ act.apply(signal) + bias
    return signal


@dataclass(frozen=True, eq=False)
class _Shared:
    """The fixed records as the products want them."""

    inputs: Tensor  # (n, d)
    inputs_t: Tensor  # (d, n)
    onehot: Tensor  # (c, n)
    act: Activation

    @staticmethod
    def of(mlp: MLP, fixed: Records) -> _Shared:
        flat = fixed.inputs.flatten(1)
        onehot = F.one_hot(fixed.labels, mlp.outputs).T.to(flat.dtype)
        return _Shared(flat, flat.T.contiguous(), onehot, activation(mlp.activation))

    def layers(self, weights: list[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Weight, output, slope and curvature of every hidden layer, for one model."""
        signal = self.inputs_t
        for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            before = weight @ signal + bias[:, None]
            signal, slope, curvature = _derivatives(self.act, before)
            yield weight, signal, slope, curvature


def _derivatives(act: Activation, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, first and second derivative.

    A kink has none; of a thousand records some are always near it, and when the weights move a share of the
    gates in proportion flips. Counting records by a kernel around the kink gives the mean of that.
    """
    y = act.apply(x)
    slope = act.slope(x, y)
    if act.curve is not None:
        return y, slope, act.curve(x, y)
    where, low, high = act.kink
    wide = (_BLUR * x.std()).clamp_min(1e-12)
    kernel = torch.exp(-0.5 * ((x - where) / wide).square()) / (wide * math.sqrt(2 * math.pi))
    return y, slope, (high - low) * kernel


def _hessian_product(weights: list[Tensor], tangent: list[Tensor], shared: _Shared) -> list[Tensor]:
    """Hessian of the mean loss at one model times q stacked directions: the derivative of backprop.

    Values of the model itself are shared by all directions; d… names a derivative along them.
    """
    hidden = list(shared.layers(weights))
    q = len(tangent[0])
    n = shared.inputs.shape[0]
    # forward, and its derivative
    first = tangent[0].flatten(0, 1) @ shared.inputs_t
    d_before = [first.view(q, -1, n) + tangent[1][:, :, None]]
    d_outputs = []
    for layer, (_, output, slope, _) in enumerate(hidden):
        d_outputs.append(slope * d_before[-1])
        d_weight, d_bias = tangent[2 * layer + 2], tangent[2 * layer + 3]
        weight = weights[2 * layer + 2]
        d_before.append(d_weight @ output + weight @ d_outputs[-1] + d_bias[:, :, None])
    top = hidden[-1][1] if hidden else shared.inputs_t
    share = torch.softmax(weights[-2] @ top + weights[-1][:, None], 0)
    error = (share - shared.onehot) / n
    moved = share * d_before[-1]
    d_error = (moved - share * moved.sum(1, keepdim=True)) / n
    # backward, and its derivative
    products: list[Tensor] = []
    for layer in range(len(hidden) - 1, -1, -1):
        _, output, slope, curvature = hidden[layer]
        weight, d_weight = weights[2 * layer + 2], tangent[2 * layer + 2]
        product = d_error @ output.T + error @ d_outputs[layer].transpose(1, 2)
        products = [product, d_error.sum(2), *products]
        back = weight.T @ error
        d_back = d_weight.transpose(1, 2) @ error + weight.T @ d_error
        d_error = d_back * slope + back * curvature * d_before[layer]
        error = back * slope
    product = d_error.reshape(-1, n) @ shared.inputs
    return [product.view(q, -1, shared.inputs.shape[1]), d_error.sum(2), *products]
