"""Superparameters: one neuron's incoming row, weights and bias together (Mnemonist23, our reading).

A row of an inactive ReLU neuron receives no gradient from a record; a row of an active one stores a
scaled copy of it. For a convolution a row is one filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Layout

__all__ = ["Rows", "rows_of", "select"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Which row each parameter belongs to. Rows are numbered through, layer after layer."""

    of: Tensor  # (p,) int64
    layers: tuple[str, ...]
    sizes: tuple[int, ...]  # rows per layer

    @property
    def count(self) -> int:
        return sum(self.sizes)

    def sum(self, values: Tensor) -> Tensor:
        """(..., p) to (..., rows): sums over each row's parameters."""
        total = values.new_zeros(*values.shape[:-1], self.count)
        return total.index_add_(-1, self.of.to(values.device), values)

    def per_layer(self, values: Tensor) -> dict[str, Tensor]:
        """(rows,) to one (neurons,) per layer."""
        return dict(zip(self.layers, torch.split(values, list(self.sizes)), strict=True))


def rows_of(layout: Layout) -> Rows:
    """A parameter's layer is its name up to the last dot; its row, its first index.

    Parameters of one module with other numbers of rows are layers of their own, under their whole name.
    """
    parts: list[Tensor] = []
    layers: list[str] = []
    sizes: list[int] = []
    before = ""
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        layer, count = name.rpartition(".")[0], shape[0] if shape else 1
        if not layers or before != layer or sizes[-1] != count:
            layers.append(name if layer in layers else layer)
            sizes.append(count)
        before, first = layer, sum(sizes[:-1])
        parts.append(torch.arange(first, first + count).repeat_interleave(math.prod(shape[1:])))
    return Rows(torch.cat(parts), tuple(layers), tuple(sizes))


def select(importance: Tensor, share: float, key: Key | None = None) -> Tensor:
    """(k,) bool: the most important share of a layer's rows, at least one; with a key, random ones."""
    if not 0 < share <= 1:
        raise ExhumeError(f"share: {share} given, legal is 0 < share <= 1")
    count = max(1, round(share * len(importance)))
    if key is None:
        order = importance.argsort(descending=True, stable=True)
    else:
        order = torch.randperm(len(importance), generator=key.generator()).to(importance.device)
    chosen = torch.zeros(len(importance), dtype=torch.bool, device=importance.device)
    chosen[order[:count]] = True
    return chosen
