"""More than the memory holds, said before anything is read rather than after being killed halfway."""

from __future__ import annotations

import os
import sys

from exhume.contract import ExhumeError

__all__ = ["check_memory"]


def check_memory(needed: int, what: str) -> None:
    """needed: bytes. what: begins the sentence, such as `photos: 5 records of 1x8x8`."""
    if sys.platform == "win32":
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise ExhumeError(
            f"{what} need {needed / 1e9:.0f} GB, this machine has {memory / 1e9:.0f} GB; pass fewer or "
            "smaller ones"
        )
