"""Files of fine-tuning in the settings of an audit: an adapter or a difference, and its base."""

from __future__ import annotations

from pathlib import Path

from exhume.readers.adapters import Against
from exhume.settings import CheckpointSettings, UpdateSettings

__all__ = ["against_of"]


def against_of(said: CheckpointSettings | UpdateSettings) -> tuple[Path, Against] | None:
    """The file and what it is read against; None where neither adapter nor difference is given."""
    if said.adapter:
        return Path(said.adapter), Against(Path(said.base), "adapter", said.scaling or None)
    if said.delta:
        return Path(said.delta), Against(Path(said.base), "delta")
    return None
