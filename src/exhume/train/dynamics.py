"""Which neurons did a record ever reach? Training again, watching each hidden neuron on the target.

The gradient of a row of incoming weights is dL/da · R'(h) · x: in a step in which R'(h) = 0 on the
record, the row receives nothing from it (Mnemonist23; Balle22 Fig. 16).
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.contract import ExhumeError, Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.train.stacked import Descent, _Batch, _gradients, _pack, _unpack

__all__ = ["active_share"]


def active_share(
    mlp: MLP, descent: Descent, initial: Tensor, fixed: Records, extra: Records
) -> tuple[list[Tensor], Tensor]:
    """Share of the steps in which each hidden neuron was active, R'(h) != 0, on the model's own record.

    initial: (p,) or (s, p); extra: (s, 1, *shape). Returns one (s, k) per hidden layer, and the (s, p)
    trained parameters, which are those of `descend`.
    """
    if extra.labels.shape[1] != 1:
        raise ExhumeError(f"extra: {extra.labels.shape[1]} records a model given, 1 expected")
    if descent.steps < 1:
        raise ExhumeError(f"steps: {descent.steps} given, at least 1 needed")
    batch = _Batch.of(fixed, extra, mlp.outputs)
    parameters = _unpack(mlp, initial.expand(extra.inputs.shape[0], -1), batch.order)
    velocities = [torch.zeros_like(tensor) for tensor in parameters]
    act = activation(mlp.activation)
    counts = [parameters[0].new_zeros(len(parameters[0]), width) for width in mlp.hidden]
    for _ in range(descent.steps):
        for count, slope in zip(counts, _slopes(parameters, batch.extra[:, 0], act), strict=True):
            count.add_(slope != 0)
        gradients = _gradients(parameters, batch, act)
        for tensor, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
            if descent.weight_decay:
                gradient.add_(tensor, alpha=descent.weight_decay)
            velocity.mul_(descent.momentum).add_(gradient)
            tensor.sub_(velocity, alpha=descent.rate)
    return [count / descent.steps for count in counts], _pack(parameters, batch.order)


def _slopes(parameters: list[Tensor], records: Tensor, act: Activation) -> list[Tensor]:
    """(s, d) own records to the derivative of every hidden activation, (s, k) each."""
    slopes, signal = [], records
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        before = torch.einsum("skd,sd->sk", weight, signal) + bias
        signal = act.apply(before)
        slopes.append(act.slope(before, signal))
    return slopes
