"""Which version did the work in a run folder: its package, torch, and the code that decides bits."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

__all__ = ["MIXED", "other_version", "version_now"]

MIXED = "mixed with "
_DECIDE = ("train", "models", "attacks")  # folders whose code decides what a stored piece holds


@cache
def version_now() -> str:
    """In words; the same words, the same bits may be expected."""
    source = Path(__file__).parents[1]
    state = hashlib.sha256()
    for path in sorted(p for room in _DECIDE for p in (source / room).rglob("*.py")):
        state.update(f"{path.relative_to(source)}\n".encode() + path.read_bytes())
    return f"exhume {version('exhume')}, torch {torch.__version__}, code {state.hexdigest()[:12]}"


def other_version(marker: Path) -> str:
    """The version that a marker names, if it is another one; what this version has gone on from is marked."""
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        found, before = str(content["version"]), str(content.get("before", ""))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return "an earlier one that left no name"
    if found == version_now():
        return f"{MIXED}{before}" if before else ""
    return found if not before else f"{found}, itself mixed with {before}"
