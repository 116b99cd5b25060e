"""Benchmarks: ratios measured in one run, never a bare time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exhume.bench import glm, shadows
from exhume.contract import ExhumeError, Progress, silent

__all__ = ["BENCHES", "run_benches"]

BENCHES: dict[str, Callable[[Progress], dict[str, Any]]] = {
    "shadows": shadows.run,
    "glm": glm.run,
}


def run_benches(name: str | None = None, *, progress: Progress = silent) -> list[dict[str, Any]]:
    if name is not None and name not in BENCHES:
        raise ExhumeError(f"bench: {name!r} is not one of {', '.join(BENCHES)}")
    return [BENCHES[chosen](progress) for chosen in ([name] if name else BENCHES)]
