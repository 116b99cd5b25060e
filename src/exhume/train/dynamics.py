"""Which neurons did a record ever reach? Training again, watching each hidden neuron on the target.

The gradient of a row of incoming weights is dL/da · R'(h) · x: in a step in which R'(h) = 0 on the
record, the row receives nothing from it (Mnemonist23; Balle22 Fig. 16).
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.train.optimisers import Descent
from exhume.train.stacked import descend

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
    act = activation(mlp.activation)
    records = extra.inputs[:, 0].flatten(1)
    counts = [records.new_zeros(len(records), width) for width in mlp.hidden]

    def look(parameters: Tensor) -> None:
        layers = list(mlp.layout.split(parameters).values())
        for count, slope in zip(counts, _slopes(layers, records, act), strict=True):
            count.add_(slope != 0)

    trained = descend(mlp, descent, initial, fixed, extra, watch=look)
    return [count / descent.steps for count in counts], trained


def _slopes(parameters: list[Tensor], records: Tensor, act: Activation) -> list[Tensor]:
    """(s, d) own records to the derivative of every hidden activation, (s, k) each."""
    slopes, signal = [], records
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        before = torch.einsum("skd,sd->sk", weight, signal) + bias
        signal = act.apply(before)
        slopes.append(act.slope(before, signal))
    return slopes
