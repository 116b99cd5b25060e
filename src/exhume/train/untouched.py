"""Which parameters does a record leave untouched? Training again, looking at the record's own gradient.

For every tensor of parameters, the share of its entries whose gradient from the record is exactly zero
(Balle22 Fig. 16). In an MLP's first layer an entry is zero where its neuron is off or its pixel is black;
the bias's gradient is the neuron's error alone, so its share is that of the neurons that are off.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Records
from exhume.train import functional
from exhume.train.optimisers import Descent
from exhume.train.recipe import descent_of

__all__ = ["Untouched", "untouched"]

_AT_ONCE = 64  # gradients held at once


@dataclass(frozen=True, eq=False)
class Untouched:
    steps: tuple[int, ...]  # before which training was looked at, the first is 0
    shares: dict[str, Tensor]  # (len(steps), t) by name of the parameters
    sizes: dict[str, int]  # how many parameters each name has

    def over(self, prefix: str) -> Tensor:
        """(len(steps), t): the share over all parameters whose name begins so."""
        names = [name for name in self.shares if name.startswith(prefix)]
        if not names:
            raise ExhumeError(f"prefix: {prefix!r} begins none of {', '.join(self.shares)}")
        zeros = sum(self.shares[name] * self.sizes[name] for name in names)
        assert isinstance(zeros, Tensor)
        return zeros / sum(self.sizes[name] for name in names)


def untouched(
    architecture: Architecture,
    descent: Descent,
    initial: Tensor,
    fixed: Records,
    extra: Records,
    *,
    seen: Records,
    every: int = 1,
) -> Untouched:
    """Train on `fixed` and `extra` (s, e, *shape); look at the gradients of `seen` (t, 1, *shape).

    Record i is looked at in model i; if there is one model, all are looked at in that one. A look before
    every so many steps.
    """
    s, t = extra.labels.shape[0], seen.labels.shape[0]
    if s not in (1, t):
        raise ExhumeError(f"seen: {t} records given for {s} models, as many or one model needed")
    if every < 1:
        raise ExhumeError(f"every: {every} given, at least 1 needed")
    layout, step = architecture.layout, 0
    looks: list[dict[str, Tensor]] = []

    def look(parameters: Tensor) -> None:
        nonlocal step
        if step % every == 0:
            looks.append(_zeros(architecture, parameters.expand(t, -1), seen))
        step += 1

    descent_of(architecture)(descent, initial, fixed, extra, watch=look)
    shares = {name: torch.stack([found[name] for found in looks]) for name in layout.names}
    sizes = {
        name: torch.Size(shape).numel()
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    return Untouched(tuple(range(0, descent.steps, every)), shares, sizes)


def _zeros(architecture: Architecture, parameters: Tensor, seen: Records) -> dict[str, Tensor]:
    """(t, p) models: share of zero gradients, (t,) by name."""
    found: dict[str, list[Tensor]] = {name: [] for name in architecture.layout.names}
    for start in range(0, len(seen), _AT_ONCE):
        cut = slice(start, start + _AT_ONCE)
        gradients = functional.own_gradients(architecture, parameters[cut], seen[cut])
        for name, part in architecture.layout.split(gradients).items():
            found[name].append((part == 0).flatten(1).double().mean(1))
    return {name: torch.cat(parts) for name, parts in found.items()}
