"""Records that stand alone in a row of the first layer's gradient.

    dL/dW_j = sum_i delta_ij x_i,   dL/db_j = sum_i delta_ij

A neuron that a single record has switched on has dL/dW_j = x dL/db_j: the ratio is the record, exactly. Two
neurons with the same ratio certify it. A batch of one always falls to this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from exhume.attacks.releases import BatchAnswer, EachGradient, architecture_of
from exhume.core.contract import (
    Architecture,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)


@dataclass(frozen=True)
class BiasRatio:
    """Divide the first layer's weight gradient by its bias gradient, neuron by neuron.

    Sees: `Gradient`, the first layer.
    Assumes: that layer is fully connected to the record and has a bias; the architecture.
    Guarantees: a candidate is the common ratio of `agreeing` neurons or more, `tolerance` apart at most.
    Records that share every neuron they switch on are not found.
    Reference: Phong et al. 2017; Geiping et al. 2020, Prop. 3.1.
    """

    agreeing: int = 2
    tolerance: float = 1e-3  # relative
    largest: int = 64  # candidates kept

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        architecture = architecture_of(knowledge, "the bias ratio")
        layout = architecture.layout
        inputs = math.prod(architecture.input_shape)
        fits = len(layout.shapes) > 1 and layout.shapes[0][1:] == (inputs,)
        if not fits or layout.shapes[1] != layout.shapes[0][:1]:
            raise NotApplicable(
                f"{architecture}: its first layer is not fully connected with a bias", ever=False
            )
        shape, invert = tuple(architecture.input_shape), partial(self._ratios, architecture)
        return EachGradient(shape, invert, "the bias ratio", "dividing gradients")

    def _ratios(
        self, architecture: Architecture, values: Tensor, _: Tensor, __: int
    ) -> BatchAnswer:
        weight, bias = list(architecture.layout.split(values).values())[:2]
        records, counts = agreeing_ratios(weight, bias, self.tolerance)
        certified = (counts >= self.agreeing).nonzero()[:, 0][: self.largest]
        why = None
        if not len(certified):
            why = NotApplicable("no two neurons agree on a record", ever=True)
        return BatchAnswer(
            records[certified].to(weight.dtype).reshape(-1, *architecture.input_shape),
            counts[certified].double(),
            {"candidates": float(len(certified))},
            refused=why,
        )


def agreeing_ratios(weight: Tensor, bias: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """(g, d) ratios of gradients, weight (m, d) to bias (m,), and how many neurons (g,) agree on each."""
    live = bias.abs() > 1e-6 * bias.abs().max()
    ratios = (weight[live] / bias[live][:, None]).double()
    left = torch.arange(len(ratios))
    medians, counts = [], []
    norms = ratios.norm(dim=1).clamp_min(1e-300)
    while len(left):
        centre = ratios[left[0]]
        near = (ratios[left] - centre).norm(dim=1) < tolerance * norms[left[0]]
        near[0] = True
        medians.append(ratios[left[near]].median(0).values)
        counts.append(int(near.sum()))
        left = left[~near]
    sizes = torch.tensor(counts, dtype=torch.int64)
    order = sizes.argsort(descending=True, stable=True)
    rows = torch.stack(medians) if medians else ratios[:0]
    return rows[order], sizes[order]
