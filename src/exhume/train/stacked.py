"""Full-batch gradient descent for s MLPs at once, each on the fixed records and its own extra ones.

The fixed records are shared, so the first layer of all s models is one product of (s·k, d) with
(d, n) instead of s small ones; the later layers are batched products. The extra records are e more
columns of every activation.

Memory: about 4·s·(n + e)·(largest width + outputs) + 12·s·p bytes, see `bytes_per_model`.
Cost: (4·n·d·k + 6·n·k·c)·steps floating-point operations a model for one hidden layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.contract import Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP

__all__ = ["Descent", "accuracy", "bytes_per_model", "descend", "logits"]


@dataclass(frozen=True)
class Descent:
    """Heavy-ball gradient descent on the mean loss: v <- m·v + g, theta <- theta - rate·v."""

    steps: int = 100
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0


def descend(mlp: MLP, descent: Descent, initial: Tensor, fixed: Records, extra: Records) -> Tensor:
    """Train s models; model i minimises the mean cross-entropy of `fixed` and `extra[i]`.

    initial: (p,) or (s, p); extra: (s, e, *shape), e may be 0; returns (s, p).
    """
    batch = _Batch.of(fixed, extra, mlp.outputs)
    parameters = _unpack(mlp, initial.expand(extra.inputs.shape[0], -1), batch.order)
    velocities = [torch.zeros_like(tensor) for tensor in parameters]
    act = activation(mlp.activation)
    for _ in range(descent.steps):
        gradients = _gradients(parameters, batch, act)
        for tensor, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
            if descent.weight_decay:
                gradient.add_(tensor, alpha=descent.weight_decay)
            velocity.mul_(descent.momentum).add_(gradient)
            tensor.sub_(velocity, alpha=descent.rate)
    return _pack(parameters, batch.order)


@dataclass(frozen=True, eq=False)
class _Batch:
    """The records as the products want them.

    Inputs that are zero in every fixed record (the rim of MNIST's images) get no gradient from them:
    `order` moves these columns last, and the big products run over the `live` first ones only. This
    changes nothing but the time.
    """

    order: Tensor  # (d,) permutation of the inputs, live ones first
    live: int
    fixed: Tensor  # (n, live)
    fixed_t: Tensor  # (live, n)
    extra: Tensor  # (s, e, d), columns in `order`
    onehot: Tensor  # (s, c, n + e)

    @staticmethod
    def of(fixed: Records, extra: Records, outputs: int) -> _Batch:
        flat = fixed.inputs.flatten(1)
        dead = (flat == 0).all(0)
        order = torch.argsort(dead.to(torch.uint8), stable=True)
        live = int((~dead).sum())
        s, e = extra.labels.shape
        onehot = torch.cat(
            [
                F.one_hot(fixed.labels, outputs).T.expand(s, -1, -1),
                F.one_hot(extra.labels, outputs).transpose(1, 2),
            ],
            dim=2,
        )
        fixed_live = flat[:, order[:live]].contiguous()
        return _Batch(
            order=order,
            live=live,
            fixed=fixed_live,
            fixed_t=fixed_live.T.contiguous(),
            extra=extra.inputs.reshape(s, e, flat.shape[1])[:, :, order].contiguous(),
            onehot=onehot.to(flat.dtype).contiguous(),
        )


def _first_layer(weight: Tensor, batch: _Batch) -> Tensor:
    """(s, k, d) weights times all records: (s, k, n + e)."""
    s, k, d = weight.shape
    n, e = batch.fixed.shape[0], batch.extra.shape[1]
    out = weight.new_empty(s, k, n + e)
    torch.mm(weight.view(s * k, d)[:, : batch.live], batch.fixed_t, out=out.view(s * k, -1)[:, :n])
    if e:
        out[:, :, n:] = torch.bmm(weight, batch.extra.transpose(1, 2))
    return out


def _first_gradient(error: Tensor, batch: _Batch) -> Tensor:
    """(s, k, n + e) errors times all records: (s, k, d)."""
    s, k, _ = error.shape
    n, d = batch.fixed.shape[0], batch.order.shape[0]
    out = error.new_empty(s, k, d)
    flat = out.view(s * k, d)
    torch.mm(error.view(s * k, -1)[:, :n], batch.fixed, out=flat[:, : batch.live])
    flat[:, batch.live :] = 0
    if batch.extra.shape[1]:
        out.baddbmm_(error[:, :, n:], batch.extra)
    return out


def _gradients(parameters: list[Tensor], batch: _Batch, act: Activation) -> list[Tensor]:
    """Gradients of every model's mean loss, by hand: weight, bias, weight, bias, …"""
    weights, biases = parameters[::2], parameters[1::2]
    inputs: list[Tensor] = []  # pre-activations, (s, k, n + e) each
    outputs: list[Tensor] = []
    signal = _first_layer(weights[0], batch).add_(biases[0][:, :, None])
    for weight, bias in zip(weights[1:], biases[1:], strict=True):
        inputs.append(signal)
        outputs.append(act.apply(signal))
        signal = torch.baddbmm(bias[:, :, None], weight, outputs[-1])
    # cross-entropy: d loss / d logits = (softmax - onehot) / N
    error = torch.softmax(signal, 1).sub_(batch.onehot).div_(signal.shape[2])
    gradients: list[Tensor] = []
    for layer in range(len(weights) - 1, 0, -1):
        gradients = [torch.bmm(error, outputs[layer - 1].transpose(1, 2)), error.sum(2), *gradients]
        slope = act.slope(inputs[layer - 1], outputs[layer - 1])
        error = torch.bmm(weights[layer].transpose(1, 2), error).mul_(slope)
    return [_first_gradient(error, batch), error.sum(2), *gradients]


def _unpack(mlp: MLP, flat: Tensor, order: Tensor) -> list[Tensor]:
    """(s, p) to contiguous per-layer tensors, the first layer's columns in `order`."""
    first, *rest = mlp.layout.split(flat).values()
    return [first[:, :, order].contiguous(), *(tensor.clone() for tensor in rest)]


def _pack(parameters: list[Tensor], order: Tensor) -> Tensor:
    first, *rest = parameters
    original = torch.empty_like(first)
    original[:, :, order] = first
    return torch.cat([tensor.flatten(1) for tensor in (original, *rest)], dim=1)


def bytes_per_model(mlp: MLP, records: int) -> int:
    """Peak memory that one more model in a stack takes, for float32."""
    activations = sum(3 * width for width in mlp.sizes[1:-1]) + 4 * mlp.outputs
    return 4 * (records * activations + 4 * mlp.layout.size)


def logits(mlp: MLP, parameters: Tensor, inputs: Tensor) -> Tensor:
    """(s, p) models on (n, *shape) shared inputs: (s, n, c)."""
    layers = list(mlp.layout.split(parameters).values())
    act = activation(mlp.activation)
    signal = inputs.flatten(1).T
    for index, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
        signal = torch.matmul(weight, signal if index == 0 else act.apply(signal)) + bias[..., None]
    return signal.transpose(1, 2)


def accuracy(mlp: MLP, parameters: Tensor, records: Records) -> Tensor:
    """(s, p) to (s,): share of the records that each model classifies rightly."""
    right = logits(mlp, parameters, records.inputs).argmax(2) == records.labels
    return right.double().mean(1)
