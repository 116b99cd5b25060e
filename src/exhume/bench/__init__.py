"""Benchmarks: ratios measured in one run, never a bare time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exhume.bench import shadows
from exhume.contract import ExhumeError, Progress, silent

__all__ = ["BENCHES", "run_benches"]

BENCHES: dict[str, Callable[[Progress], list[dict[str, Any]]]] = {"shadows": shadows.run}


def run_benches(name: str | None = None, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """One entry per case of the named bench, or of all."""
    if name is not None and name not in BENCHES:
        raise ExhumeError(f"bench: {name!r} is not one of {', '.join(BENCHES)}")
    chosen = [name] if name else list(BENCHES)
    return [entry for one in chosen for entry in BENCHES[one](progress)]
