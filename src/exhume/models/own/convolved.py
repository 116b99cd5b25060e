"""A trained network behind convolutions as a value: the module as it is, and how a new one begins."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from exhume.core.contract import Key, Layout
from exhume.models.probes import change_inputs

__all__ = ["Convolved"]


@dataclass(frozen=True, eq=False)
class Convolved:
    """Its parameters are the module's; buffers stay as they are in it.

    shift, scale: (*shape) each; records enter as (x + shift) / scale.
    """

    module: nn.Module = field(compare=False, repr=False)  # in eval mode
    input_shape: tuple[int, ...]
    outputs: int
    name: str
    start: Callable[[Key], Tensor] = field(compare=False)  # (p,) where a training begins
    shift: Tensor | None = field(default=None, compare=False)
    scale: Tensor | None = field(default=None, compare=False)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    def initial(self, key: Key) -> Tensor:
        return self.start(key)

    def build(self) -> nn.Module:
        made = copy.deepcopy(self.module)
        if self.shift is not None or self.scale is not None:
            change_inputs(made, lambda _, given, more: ((self.entering(given[0]),), more))
        return made

    def entering(self, records: Tensor) -> Tensor:
        """(n, *shape) records as the module takes them."""
        shifted = records if self.shift is None else records + self.shift.to(records)
        return shifted if self.scale is None else shifted / self.scale.to(records)

    def __str__(self) -> str:
        return self.name
