"""Benchmarks: ratios measured in one run, never a bare time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exhume.bench import ensembler, glm, gradient, margin, shadows
from exhume.contract import ExhumeError, Progress, silent

__all__ = ["BENCHES", "run_benches"]

BENCHES: dict[str, Callable[[Progress], list[dict[str, Any]]]] = {
    "shadows": shadows.run,
    "glm": glm.run,
    "margin": margin.run,
    "gradient": gradient.run,
    "ensembler": ensembler.run,
}


def run_benches(name: str | None = None, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """One entry per case of the named bench, or of all."""
    if name is not None and name not in BENCHES:
        raise ExhumeError(f"bench: {name!r} is not one of {', '.join(BENCHES)}")
    if name is not None:
        return BENCHES[name](progress)
    return [entry for one in BENCHES for entry in _entries_or_why_not(one, progress)]


def _entries_or_why_not(name: str, progress: Progress) -> list[dict[str, Any]]:
    """When all are asked for, a rival that is not installed must not cost the others."""
    try:
        return BENCHES[name](progress)
    except ExhumeError as why:
        return [{"name": name, "skipped": str(why)}]
