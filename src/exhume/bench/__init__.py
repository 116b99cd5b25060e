"""Benchmarks: ratios measured in one run, never a bare time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exhume.bench import ensembler, glm, gradient, margin, shadows, update
from exhume.core.contract import ExhumeError, Progress, silent

__all__ = ["BENCHES", "run_benches"]

Bench = Callable[[Progress], list[dict[str, Any]]]


BENCHES: dict[str, Bench] = {
    "shadows": shadows.run,
    "glm": glm.run,
    "margin": margin.run,
    "gradient": gradient.run,
    "update": update.run,
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
    return [entry for one in benches for entry in _entries_or_why_not(one, benches[one], progress)]


def _entries_or_why_not(name: str, bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    """When all are asked for, a rival that is not installed must not cost the others."""
    try:
        return bench(progress)
    except ExhumeError as why:
        return [{"name": name, "skipped": str(why)}]
