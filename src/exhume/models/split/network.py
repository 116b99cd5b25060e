"""A network as a value that builds itself from a key."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import nn

from exhume.core.contract import Key

__all__ = ["Network"]


@runtime_checkable
class Network(Protocol):
    """A network as a value that builds itself from a key."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...
    def module(self, key: Key) -> nn.Module: ...
