"""How far each record's clipped gradient points along a direction, for s models at once.

For MLPs gradients are never formed: that of a record is, in every layer, its error times the layer's input
and a 1 for the bias, so products with a direction and squared norms follow from the two factors. Every
other architecture takes the general path.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.core.contract import Architecture, Records
from exhume.models.activations import activation
from exhume.models.mlp import MLP
from exhume.train.dp import Privacy
from exhume.train.functional import record_gradients

__all__ = ["projected"]


def projected(
    architecture: Architecture,
    parameters: Tensor,
    directions: Tensor,
    records: Records,
    privacy: Privacy,
) -> tuple[Tensor, Tensor]:
    """(s, p) models, (s, p) directions, n shared records: <direction, g> and |g|^2, (s, n) each."""
    if isinstance(architecture, MLP):
        along, squared = _by_layers(architecture, parameters, directions, records)
    else:
        each = record_gradients(architecture, parameters, records)
        along = torch.einsum("sp,snp->sn", directions, each)
        squared = each.square().sum(2)
    if not privacy.clips:
        return along, squared
    factors = privacy.factors(squared)
    return along * factors, squared * factors.square()


def _by_layers(
    mlp: MLP, parameters: Tensor, directions: Tensor, records: Records
) -> tuple[Tensor, Tensor]:
    weights, biases = _pairs(mlp, parameters)
    act = activation(mlp.activation)
    inputs = [records.inputs.flatten(1).T.expand(len(parameters), -1, -1)]  # (s, k, n) each
    before: list[Tensor] = []
    for weight, bias in zip(weights, biases, strict=True):
        before.append(torch.matmul(weight, inputs[-1]) + bias[:, :, None])
        inputs.append(act.apply(before[-1]))
    onehot = F.one_hot(records.labels, mlp.outputs).T.to(parameters)
    error = torch.softmax(before[-1], 1) - onehot
    along = squared = parameters.new_zeros(())
    for layer, (towards, offset) in reversed(
        list(enumerate(zip(*_pairs(mlp, directions), strict=True)))
    ):
        below = inputs[layer]
        moved = torch.matmul(towards, below) + offset[:, :, None]
        along = along + (error * moved).sum(1)
        squared = squared + error.square().sum(1) * (below.square().sum(1) + 1)
        if layer:
            slope = act.slope(before[layer - 1], below)
            error = torch.matmul(weights[layer].transpose(1, 2), error) * slope
    return along, squared


def _pairs(mlp: MLP, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    layers = list(mlp.layout.split(flat).values())
    return layers[::2], layers[1::2]
