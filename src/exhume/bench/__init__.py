"""Benchmarks: ratios measured in one run, never a bare time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exhume.bench import guard
from exhume.core.contract import Progress, silent
from exhume.core.errors import unknown_name

Bench = Callable[[Progress], list[dict[str, Any]]]

BENCHES: dict[str, Bench] = {"guard": guard.run}


def run_benches(name: str | None = None, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """One entry per case of the named bench, or of all."""
    if name is not None and name not in BENCHES:
        raise unknown_name("bench", name, BENCHES)
    chosen = BENCHES.values() if name is None else [BENCHES[name]]
    return [entry for bench in chosen for entry in bench(progress)]
