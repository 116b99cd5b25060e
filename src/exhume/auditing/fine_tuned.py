"""Files of fine-tuning in the settings of an audit: an adapter or a difference, and its base."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol, runtime_checkable

from exhume.contract import ExhumeError
from exhume.victims.against_base import Against

__all__ = ["FineTuned", "against_of", "check_fine_tuned"]


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


def check_fine_tuned(said: FineTuned) -> None:
    """An adapter or a difference, with its base; nothing else."""
    if said.adapter and said.delta:
        raise ExhumeError("delta: an adapter is given too; give one of the two")
    if (said.adapter or said.delta) and not said.base:
        kind = "adapter" if said.adapter else "delta"
        raise ExhumeError(f"base: {kind} needs the state that it is added to")
    if said.base and not (said.adapter or said.delta):
        raise ExhumeError("base: only together with adapter or delta")
    if said.scaling and not said.adapter:
        raise ExhumeError("scaling: only together with adapter")
    if not (math.isfinite(said.scaling) and said.scaling >= 0):
        raise ExhumeError(f"scaling: {said.scaling} given, a finite number above 0 needed")


def against_of(said: FineTuned) -> tuple[Path, Against] | None:
    """The file and what it is read against; None where neither adapter nor difference is given."""
    if said.adapter:
        return Path(said.adapter), Against(Path(said.base), "adapter", said.scaling or None)
    if said.delta:
        return Path(said.delta), Against(Path(said.base), "delta")
    return None
