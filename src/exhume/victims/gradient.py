"""A client of federated learning: the gradient of one private batch, at parameters the server sent.

With several local steps the client releases its average step instead, (start - end) / (steps · rate): what
a server computes from the weights it gets back (FedAvg).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from exhume.contract import Architecture, ExhumeError, Gradient, Layout, Records, Secret

__all__ = ["batch_loss", "cut_batches", "release_batches"]


def batch_loss(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """() cross-entropy; of a single output, the logistic loss with labels 0 and 1."""
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(
            outputs[:, 0], labels.to(outputs.dtype), reduction=reduction
        )
    return F.cross_entropy(outputs, labels, reduction=reduction)


def cut_batches(records: Records, size: int) -> Records:
    """(n, *shape) to (n // size, size, *shape), in order."""
    if not 1 <= size <= len(records):
        raise ExhumeError(f"size: batches of {size} from {len(records)} records")
    count = len(records) // size
    kept = count * size
    return Records(
        records.inputs[:kept].reshape(count, size, *records.shape),
        records.labels[:kept].reshape(count, size),
        records.classes,
    )


def release_batches(
    architecture: Architecture,
    parameters: Tensor,
    batches: Records,
    *,
    reduction: str = "mean",
    steps: int = 1,
    rate: float = 0.1,
) -> tuple[Gradient, Secret]:
    """r batches (r, b, *shape), each a release of its own at the same parameters (p,).

    Computed in the dtype of the parameters. Labels of a one-output network must be 0 or 1.
    """
    if architecture.layout.shapes[-1][0] == 1 and int(batches.labels.max()) > 1:
        raise ExhumeError("labels: a network with one output takes labels 0 and 1")
    if steps < 1:
        raise ExhumeError(f"steps: must be at least 1, got {steps}")
    module, layout = architecture.build(), architecture.layout

    def step(flat: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return _gradient(module, layout, flat, (inputs, labels), reduction)

    values = []
    for inputs, labels in zip(batches.inputs.to(parameters.dtype), batches.labels, strict=True):
        here = parameters
        for _ in range(steps):
            here = here - rate * step(here, inputs, labels) if steps > 1 else here
        values.append(
            (parameters - here) / (steps * rate) if steps > 1 else step(here, inputs, labels)
        )
    return Gradient(torch.stack(values), layout, parameters), Secret(batches)


def _gradient(
    module: nn.Module, layout: Layout, flat: Tensor, batch: tuple[Tensor, Tensor], reduction: str
) -> Tensor:
    inputs, labels = batch

    def loss(point: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, layout.split(point), (inputs,))
        return batch_loss(outputs, labels, reduction)

    found: Tensor = grad(loss)(flat)
    return found.detach()
