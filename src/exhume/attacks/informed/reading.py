"""How the change of the weights is read: as one direction, or neuron by neuron.

A neuron's incoming row stores a scaled copy of the record, if the neuron was active on it
(Mnemonist23); the scale differs from neuron to neuron and carries little about the record. Dividing
each row by a power of its size lets every row that holds a copy speak, however faint the copy is.

    r_j -> r_j ||r_j||^(power - 1)      j a neuron; a row that did not change stays zero

Then each layer's rows together get unit size, and the layers after the first a smaller say: they hold
what the first layer made of the record. Power 1 for every layer, weighed by size, is the whole change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.informed.memory import row_blocks
from exhume.attacks.informed.superparameters import rows_of
from exhume.core.contract import Layout

__all__ = ["READINGS", "ReadRows", "Reading"]

_LATER = 0.5  # say of all layers after the first together; 1.0 is worse on ELU and ReLU shadows
_LATER_POWER = 0.5


@dataclass(frozen=True)
class Reading:
    name: str
    power: float | None  # of a row's size, in the first layer; None: the whole change as it is

    def apply(self, parameters: Tensor, base: Tensor, layout: Layout) -> Tensor:
        """(s, p) parameters to (s, p) numbers in fp64; a model that did not change gives zeros."""
        change = (parameters - base).double()
        if self.power is None:
            return F.normalize(change, dim=1)
        rows = rows_of(layout)
        of = rows.of.to(change.device)
        sizes = rows.sum(change.square()).sqrt()
        powers = torch.full((rows.count,), _LATER_POWER, dtype=change.dtype, device=change.device)
        powers[: rows.sizes[0]] = self.power
        factors = torch.where(sizes > 0, sizes.clamp_min(1e-300) ** (powers - 1), 0.0)
        change *= factors[:, of]
        say = _LATER / math.sqrt(max(1, len(rows.sizes) - 1))
        ends = torch.tensor(rows.sizes).cumsum(0).tolist()
        starts = [0, *(int((rows.of < end).sum()) for end in ends)]  # of each layer's parameters
        for layer, (start, stop) in enumerate(pairwise(starts)):
            block = F.normalize(change[:, start:stop], dim=1)
            change[:, start:stop] = block if layer == 0 else say * block
        return change


@dataclass(frozen=True, eq=False)
class ReadRows:
    """What is read off some shadows, in blocks: read anew whenever it is needed, and never held whole."""

    reading: Reading
    parameters: Tensor  # (s, p)
    rows: Tensor  # (n,)
    base: Tensor  # (p,)
    layout: Layout

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Where a block's rows are, and the (b, p) numbers read there."""
        for part in row_blocks(len(self.rows), len(self.base)):
            own = self.parameters[self.rows[part]]
            yield part, self.reading.apply(own, self.base, self.layout)

    def gram(self) -> Tensor:
        """(n, n) inner products."""
        count = len(self.rows)
        found = self.base.new_zeros(count, count, dtype=torch.float64)
        for here, left in self.blocks():
            later = replace(self, rows=self.rows[here.start :])
            for there, right in later.blocks():
                columns = slice(here.start + there.start, here.start + there.stop)
                product = left @ right.T
                found[here, columns], found[columns, here] = product, product.T
        return found

    def cross(self, read: Tensor) -> Tensor:
        """(m, p) of other models to (m, n) inner products."""
        return torch.cat([read @ block.T for _, block in self.blocks()], dim=1)


READINGS = (Reading("whole", None), Reading("rows", 0.0), Reading("rows, damped", 0.5))
