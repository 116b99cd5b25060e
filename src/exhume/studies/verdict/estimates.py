"""Does a plan say what an audit takes? Processor seconds of whole audits beside what was planned.

Twenty small systems of every kind. What takes less than a second, planned and done, is right: the plan says
no more than "under 1 s" of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from exhume.auditing import Audit
from exhume.core.results import Chart, Point
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.verdict import clients, systems
from exhume.studies.verdict.systems import NETS, Draw, trained

_FACTOR = 2.0  # that an estimate may be off by
_LEAST = 1.0  # second: below it nothing is promised


def _own_network(draw: Draw, **victim: Any) -> Audit:
    sizes = {"shadows": 60, "targets": 20}
    return trained(draw, draw.digits, sizes=sizes, network=f"{NETS}:dropping", **victim)


_ADAMW = {"optimiser": "adamw", "batch": 20, "rate": 0.003, "momentum": 0.0}
_SYSTEMS: dict[str, Callable[[Draw], Audit]] = {
    "mlp": systems.undefended,
    "mlp-batches": lambda draw: trained(draw, draw.digits, batch=20, optimiser="sgd"),
    "mlp-private": systems.private,
    "mlp-cosine": lambda draw: trained(
        draw, draw.digits, steps=200, schedule="cosine", label_smoothing=0.1
    ),
    "cnn": lambda draw: trained(
        draw, draw.digits, sizes={"shadows": 60, "targets": 20}, network="cnn", hidden=[8]
    ),
    "own-network": lambda draw: _own_network(draw, steps=20, **_ADAMW),
    "own-network-long": lambda draw: _own_network(draw, steps=60, **_ADAMW),
    "own-training": systems.classes_only,
    "own-both": systems.rescaled,
    "linear": systems.linear,
    "linear-wide": systems.wide_linear,
    "checkpoint": systems.never_trained_on,
    "checkpoint-many": systems.from_a_large_start,
    "update-batch": clients.other_batch,
    "update-noise": clients.noise_alone,
    "update-text": clients.one_text,
    "update-mean": clients.averaged,
    "split-identity": clients.identity_head,
    "split-class": clients.class_head,
    "split-permuted": partial(clients.permuted_head, epochs=6),
}


@dataclass(frozen=True)
class _Setting:
    systems: tuple[str, ...] = tuple(_SYSTEMS)
    draws: int = 1
    source: str = "digits"


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(("mlp", "linear", "update-mean")),
    "cpu": _Setting(),
    "paper": _Setting(draws=5),
}


def _run(run: Run[_Setting]) -> Outcome:
    jobs = {
        f"{name} {index}": (name, index)
        for name in run.setting.systems
        for index in range(run.setting.draws)
    }
    found = run.arms("auditing", _audited, jobs)
    metrics = {
        f"{job}.{what}": seconds for job, row in found.items() for what, seconds in row.items()
    }
    right = sum(within(row["planned"], row["took"]) for row in found.values())
    metrics |= {"audits": float(len(found)), "within": float(right)}
    chart = {
        what: [Point(job, row[what]) for job, row in found.items()] for what in ("planned", "took")
    }
    return Outcome(
        metrics={**metrics, "share": right / len(found)},
        charts=[Chart("What audits take", "system", "processor seconds", chart)],
    )


def within(planned: float, took: float) -> bool:
    """Whether an estimate is right within its factor."""
    if max(planned, took) <= _LEAST:
        return True
    return planned / _FACTOR <= took <= _FACTOR * planned


def _audited(run: Run[_Setting], job: tuple[str, int]) -> Mapping[str, float]:
    """One audit in a folder of its own, which is removed: its attacks, not its controls."""
    name, index = job
    place = run.folder.path / "audits" / f"{name}-{index}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    key, records = run.key.fold("estimates", name, index), run.records(run.setting.source)
    order = torch.randperm(len(records), generator=key.fold("order").generator())
    threads = torch.get_num_threads()
    try:
        done = _SYSTEMS[name](Draw(place, key, records[order], seed=index + 1000 * run.seed))
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(place, ignore_errors=True)
    rows = [row for row in done.result.plan if row.run]
    used = {row.name: row.threads for row in done.result.releases}
    return {
        "planned": sum(used[row.release] * row.estimated_seconds for row in rows),
        "took": sum(row.cpu_seconds or 0.0 for row in rows),
    }


STUDY = Study("estimates", _SCALES, _run)
