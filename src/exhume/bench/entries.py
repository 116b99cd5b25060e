"""What every bench does: time a piece of work, go through its cases, write down a ratio."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from exhume.core.contract import Progress

C = TypeVar("C")  # a case
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds, and what the work returns."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def each_case(
    name: str, cases: Sequence[C], measure: Callable[[C], dict[str, Any]], progress: Progress
) -> list[dict[str, Any]]:
    """The entries of the named bench, one a case."""
    entries = []
    for index, case in enumerate(cases):
        progress(f"bench {name}", index, len(cases))
        entries.append(measure(case))
    progress(f"bench {name}", len(cases), len(cases))
    return entries


def entry(  # noqa: PLR0917
    name: str, case: str, ours: float, baseline: float, repeats: int, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Seconds of both sides, their ratio, and what else the bench has measured."""
    return {
        "name": name,
        "case": case,
        "ours": ours,
        "baseline": baseline,
        "ratio": baseline / ours,
        **more,
        "threads": torch.get_num_threads(),
        "repeats": repeats,
    }
