"""Benchmarks: ratios measured in one run, never a bare time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exhume.bench import ensembler, glm, shadows, updates
from exhume.core.contract import ExhumeError, Progress, silent

Bench = Callable[[Progress], list[dict[str, Any]]]


BENCHES: dict[str, Bench] = {
    "shadows": shadows.run,
    "glm": glm.run,
    "gradient": updates.run_span,
    "update": updates.run_decoding,
    "ensembler": ensembler.run,
}


def run_benches(
    name: str | None = None,
    *,
    progress: Progress = silent,
    more: Mapping[str, Bench] | None = None,
) -> list[dict[str, Any]]:
    """One entry per case of the named bench, or of all. more: benches of rooms below this one."""
    benches = {**BENCHES, **(more or {})}
    if name is not None and name not in benches:
        raise ExhumeError(f"bench: {name!r} is not one of {', '.join(benches)}")
    if name is not None:
        return benches[name](progress)
    entries: list[dict[str, Any]] = []
    for each, bench in benches.items():
        try:
            entries += bench(progress)
        except ExhumeError as why:  # a rival that is not installed must not cost the others
            entries.append({"name": each, "skipped": str(why)})
    return entries
