"""Records that stand alone in a row of the first layer's gradient.

    dL/dW_j = sum_i delta_ij x_i,   dL/db_j = sum_i delta_ij

A neuron that a single record has switched on has dL/dW_j = x dL/db_j: the ratio is the record, exactly. Two
neurons with the same ratio certify it. A batch of one always falls to this.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.gathering import Batch, gather
from exhume.contract import (
    Architecture,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
    Store,
    silent,
)

__all__ = ["BiasRatio"]


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
    ) -> PreparedRatio:
        architecture = knowledge.architecture
        if architecture is None:
            raise NotApplicable("the bias ratio needs the architecture", ever=True)
        layout = architecture.layout
        inputs = 1
        for size in architecture.input_shape:
            inputs *= size
        fits = len(layout.shapes) > 1 and layout.shapes[0][1:] == (inputs,)
        if not fits or layout.shapes[1] != layout.shapes[0][:1]:
            raise NotApplicable(
                f"{architecture}: its first layer is not fully connected with a bias", ever=False
            )
        return PreparedRatio(self, architecture)


@dataclass(frozen=True, eq=False)
class PreparedRatio:
    attack: BiasRatio
    architecture: Architecture

    def run(self, releases: Release) -> Reconstruction:
        shape = tuple(self.architecture.input_shape)
        if not isinstance(releases, Gradient):
            why = NotApplicable("the bias ratio reads gradients, not weights", ever=False)
            return Reconstruction.none(0, shape, why)
        started = time.perf_counter()
        first, second = self.architecture.layout.names[:2]
        parts = self.architecture.layout.split(releases.values)
        batches = [
            self._one(weight, bias, shape)
            for weight, bias in zip(parts[first], parts[second], strict=True)
        ]
        return gather(batches, shape, time.perf_counter() - started)

    def _one(self, weight: Tensor, bias: Tensor, shape: tuple[int, ...]) -> Batch:
        live = bias.abs() > 1e-6 * bias.abs().max()
        ratios = weight[live] / bias[live][:, None]
        records, counts = _agreeing(ratios.double(), self.attack.tolerance)
        kept = (counts >= self.attack.agreeing).nonzero()[:, 0][: self.attack.largest]
        why = None
        if not len(kept):
            why = Status(Outcome.NOT_APPLICABLE, "no two neurons agree on a record", ever=True)
        return Batch(
            records[kept].to(weight.dtype).reshape(-1, *shape),
            counts[kept].double(),
            torch.full((len(kept),), -1),
            {"candidates": float(len(kept))},
            complete=bool(len(kept)),
            refused=why,
        )


def _agreeing(ratios: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Groups of equal rows: a row of each (g, d) and its size (g,), largest first."""
    left = torch.arange(len(ratios))
    found, counts = [], []
    norms = ratios.norm(dim=1).clamp_min(1e-300)
    while len(left):
        centre = ratios[left[0]]
        near = (ratios[left] - centre).norm(dim=1) < tolerance * norms[left[0]]
        near[0] = True
        found.append(ratios[left[near]].median(0).values)
        counts.append(int(near.sum()))
        left = left[~near]
    sizes = torch.tensor(counts, dtype=torch.int64)
    order = sizes.argsort(descending=True, stable=True)
    rows = torch.stack(found) if found else ratios[:0]
    return rows[order], sizes[order]
