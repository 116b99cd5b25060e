"""Benchmarks: ratios measured in one run, never a bare time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exhume.bench import glm, guard, shadows, updates
from exhume.core.contract import ExhumeError, Progress, silent
from exhume.core.errors import unknown_name

Bench = Callable[[Progress], list[dict[str, Any]]]

BENCHES: dict[str, Bench] = {
    "shadows": shadows.run,
    "glm": glm.run,
    "gradient": updates.run_span,
    "update": updates.run_decoding,
    "guard": guard.run,
}


def run_benches(name: str | None = None, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """One entry per case of the named bench, or of all."""
    if name is not None and name not in BENCHES:
        raise unknown_name("bench", name, BENCHES)
    if name is not None:
        return BENCHES[name](progress)
    entries: list[dict[str, Any]] = []
    for each, bench in BENCHES.items():
        try:
            entries += bench(progress)
        except ExhumeError as why:  # a rival that is not installed must not cost the others
            entries.append({"name": each, "skipped": str(why)})
    return entries
