"""Benchmarks: ratios measured in one run, never a bare time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exhume.bench import convolutions, ensembler, glm, gradient, margin, shadows, update
from exhume.bench.busy import run_busy
from exhume.contract import ExhumeError, Progress, silent

__all__ = ["BENCHES", "run_benches"]

Bench = Callable[[Progress], list[dict[str, Any]]]


def _shadows(progress: Progress) -> list[dict[str, Any]]:
    return [*shadows.run(progress), *convolutions.run(progress)]


BENCHES: dict[str, Bench] = {
    "shadows": _shadows,
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
    busy: bool = False,
) -> list[dict[str, Any]]:
    """One entry per case of the named bench, or of all. more: benches of rooms below this one.

    busy: beside a process that spins.
    """
    benches = {**BENCHES, **(more or {})}
    if name is not None and name not in benches:
        raise ExhumeError(f"bench: {name!r} is not one of {', '.join(benches)}")
    if busy and name != "shadows":
        raise ExhumeError(f"--busy: only of bench shadows, not of {name or 'all'}")
    if busy:
        return run_busy(progress)
    if name is not None:
        return benches[name](progress)
    return [entry for one in benches for entry in _entries_or_why_not(one, benches[one], progress)]


def _entries_or_why_not(name: str, bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    """When all are asked for, a rival that is not installed must not cost the others."""
    try:
        return bench(progress)
    except ExhumeError as why:
        return [{"name": name, "skipped": str(why)}]
