"""Files of fine-tuning in the settings of an audit: an adapter or a difference, and its base."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from exhume.victims.against_base import Against

__all__ = ["FineTuned", "against_of"]


@runtime_checkable
class FineTuned(Protocol):
    """The settings that say it. Empty or 0 means: not given."""

    @property
    def base(self) -> str: ...
    @property
    def adapter(self) -> str: ...
    @property
    def delta(self) -> str: ...
    @property
    def scaling(self) -> float: ...


def against_of(said: FineTuned) -> tuple[Path, Against] | None:
    """The file and what it is read against; None where neither adapter nor difference is given."""
    if said.adapter:
        return Path(said.adapter), Against(Path(said.base), "adapter", said.scaling or None)
    if said.delta:
        return Path(said.delta), Against(Path(said.base), "delta")
    return None
