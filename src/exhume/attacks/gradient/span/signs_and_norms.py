"""What F leaves open about the records found in a span: signs, norms and labels.

    r_i = alpha · dl/df(x_i, y_i)     per record; 1/B of it where the loss is averaged

- A biased first layer settles both: the last coordinate of every record is 1.
- ReLU is homogeneous: only r_i |x_i| is seen; the known loss gives the norm back, by one equation a record.
- An odd activation leaves the sign open. With three outputs or more, the residual of a softmax has one
  negative entry, the label's. With one output (x, y) and (-x, 1 - y) give identical gradients, and only a
  prior helps: images are not negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.reading import Observation
from exhume.attacks.gradient.tensor.least_squares import least_squares
from exhume.models.activations import Activation

__all__ = ["Settled", "fix_signs_and_norms", "homogeneous", "odd"]

_ITERATIONS = 50


@dataclass(frozen=True, eq=False)
class Settled:
    records: Tensor  # (b, d)
    labels: Tensor  # (b,)


def odd(activation: Activation) -> bool:
    x = torch.linspace(0.1, 3, 30, dtype=torch.float64)
    return bool(torch.allclose(activation.apply(-x), -activation.apply(x)))


def homogeneous(activation: Activation) -> bool:
    """Piecewise linear with its kink at zero."""
    x = torch.linspace(-3, 3, 30, dtype=torch.float64)
    return bool(torch.allclose(activation.apply(2 * x), 2 * activation.apply(x)))


def fix_signs_and_norms(
    activation: Activation,
    seen: Observation,
    records: Tensor,
    *,
    biased: bool,
    nonnegative: bool,
    averaged: bool,
) -> Settled:
    """records: (b, d) with the bias coordinate, if any; of unit norm for homogeneous activations."""
    weights = seen.weights.double()
    if biased:
        last = records[:, -1:]
        records = torch.cat([records[:, :-1] / last, torch.ones_like(last)], 1)
    residuals = _residuals(activation, weights, seen.outputs, records)
    if not biased and odd(activation):  # records and residuals may change their signs together
        if len(seen.outputs) >= 3:
            largest = residuals.gather(1, residuals.abs().argmax(1, keepdim=True))[:, 0]
            flip = largest > 0
        else:
            flip = (records.sum(1) < 0) & nonnegative
        signs = torch.where(flip, -1.0, 1.0).to(records.dtype)
        records, residuals = records * signs[:, None], residuals * signs[:, None]
    if homogeneous(activation) and not biased:
        share = len(records) if averaged else 1
        records = records * _norms(activation, seen, records, residuals * share)[:, None]
    labels = (residuals[:, 0] < 0).long() if len(seen.outputs) == 1 else residuals.argmin(1)
    return Settled(records[:, :-1] if biased else records, labels)


def _residuals(activation: Activation, weights: Tensor, outputs: Tensor, records: Tensor) -> Tensor:
    """(b, c) dl/df of each record, by least squares of dL/da on the neurons' outputs."""
    columns = activation.apply(weights @ records.T)
    return least_squares(columns, outputs.T)


def _norms(activation: Activation, seen: Observation, units: Tensor, products: Tensor) -> Tensor:
    """(b,) rho with rho · dl/df(rho u, y) = product, for a logistic loss or cross-entropy; by iteration."""
    logits = activation.apply(units @ seen.weights.double().T) @ seen.outer.T  # (b, c) at norm 1
    norms = torch.ones(len(units), dtype=units.dtype)
    label = products.argmin(1)
    for _ in range(_ITERATIONS):
        scaled = norms[:, None] * logits
        if scaled.shape[1] == 1:
            positive = torch.sigmoid(scaled[:, 0])
            size = torch.where(products[:, 0] < 0, 1 - positive, positive)
            norms = products[:, 0].abs() / size.clamp_min(1e-12)
        else:
            share = torch.softmax(scaled, 1).gather(1, label[:, None])[:, 0]
            norms = products.gather(1, label[:, None])[:, 0].abs() / (1 - share).clamp_min(1e-12)
    return norms
