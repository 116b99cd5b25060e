"""Shadow training beside a busy process: a process for each core against threads inside one process.

Both sides train the same models, idle and beside one process that spins. `slowdown` is what the spinning
costs a process for each core: with two cores and a fair scheduler 1.5 at best.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor

from exhume.bench.entries import entry, timed
from exhume.bench.shadows import Case, bench_records
from exhume.contract import Key, Progress, Records
from exhume.models.mlp import MLP
from exhume.scale import Cores, spread_over
from exhume.store import NullStore
from exhume.train.fleet import LARGEST_CHUNK, train_fleet
from exhume.train.recipe import FullBatch
from exhume.train.stacked import Descent

__all__ = ["CASE", "run_busy"]

CASE = Case(MLP((784,), (10,), 10), 1000, steps=100, models=768)
_THREADED = 64  # models that threads train, which may take long
_REPEATS = 2


def run_busy(progress: Progress) -> list[dict[str, Any]]:
    """The entry of `bench shadows --busy`."""
    times: dict[str, list[float]] = {}
    total = 4 * _REPEATS
    for turn in range(_REPEATS):
        for place, name in enumerate(("idle", "busy")):
            with spinning() if name == "busy" else nullcontext():
                progress("bench shadows --busy", 4 * turn + 2 * place, total)
                times.setdefault(f"{name} processes", []).append(_processes(CASE))
                times.setdefault(f"{name} threads", []).append(_threads(CASE))
    progress("bench shadows --busy", total, total)
    best = {name: min(seconds) for name, seconds in times.items()}
    more = {
        "models_a_second": {name: round(1 / seconds, 1) for name, seconds in best.items()},
        "slowdown": best["busy processes"] / best["idle processes"],
        "slowdown_of_threads": best["busy threads"] / best["idle threads"],
        "models": CASE.models,
    }
    case = f"{CASE}, beside a busy process"
    return [entry("shadows", case, best["busy processes"], best["busy threads"], _REPEATS, more)]


@contextmanager
def spinning() -> Iterator[None]:
    """One process that does nothing, as fast as it can."""
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinner.kill()
        spinner.wait()


def _processes(case: Case) -> float:
    """Seconds a model as the commands train them, the start of the processes included."""
    job = _job(case, case.models)
    with spread_over(Cores()):
        fleet = train_fleet(*job, store=NullStore(), chunk=LARGEST_CHUNK, stage="", key=_KEY)
        seconds, _ = timed(lambda: sum(len(part) for part in fleet))
    return seconds / case.models


def _threads(case: Case) -> float:
    """Seconds a model where all threads work on one chunk."""
    count = min(_THREADED, case.models)
    recipe, initial, fixed, extra = _job(case, count)
    seconds, _ = timed(lambda: recipe.fit(initial, fixed, extra, _KEY))
    return seconds / count


_KEY = Key.from_seed(0).fold("bench")


def _job(case: Case, models: int) -> tuple[FullBatch, Tensor, Records, Records]:
    net = case.architecture
    recipe = FullBatch(net, Descent(steps=case.steps, momentum=0.9))
    fixed = bench_records(case.records, net, _KEY.fold("fixed"))
    extra = bench_records(models, net, _KEY.fold("extra")).one_each()
    return recipe, net.initial(_KEY), fixed, extra
