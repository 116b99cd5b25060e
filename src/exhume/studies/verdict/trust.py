"""Can a decision be staked on the four words? Whole audits of systems whose right verdict is known.

null      nothing of the targets is in the release: "leaks" and "at risk" are false alarms, unless what leaks
          proves itself and is said to be other records than those that were named
certain   the records are there for the taking: anything else is a miss
unknown   effort or system say nothing: anything but "not audited" claims what nobody knows
defended  a defence holds and the attack works without it: a tool that never says "no leak found" is no tool
average   only the mean of a batch can be had: no claimed record may be that mean

Every audit draws its own system: records, weights, noise, seed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from exhume.auditing import Audit
from exhume.core.results import Chart, Point
from exhume.score.intervals import clopper_pearson
from exhume.score.verdict import OF_OTHERS
from exhume.store.shards import read_shard
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.verdict import systems
from exhume.studies.verdict.systems import Draw

WORDS = ("leaks", "at risk", "no leak found", "not audited")
_SYSTEMS: dict[str, tuple[str, Callable[[Draw], Audit]]] = {
    "drowned": ("null", systems.drowned),
    "classes-only": ("null", systems.classes_only),
    "many-classes": ("null", systems.many_classes),
    "duplicates": ("null", systems.duplicates),
    "constants": ("null", systems.constants),
    "others-of-the-class": ("null", systems.others_of_the_class),
    "other-batch": ("null", systems.other_batch),
    "noise-alone": ("null", systems.noise_alone),
    "linear-of-others": ("null", systems.linear_of_others),
    "never-trained-on": ("null", systems.never_trained_on),
    "class-head": ("null", systems.class_head),
    "undefended": ("certain", systems.undefended),
    "undefended-mnist": ("certain", systems.undefended_mnist),
    "kept-in-a-buffer": ("certain", systems.kept_in_a_buffer),
    "one-record": ("certain", systems.one_record),
    "one-record-cnn": ("certain", systems.one_record_of_a_cnn),
    "one-text": ("certain", systems.one_text),
    "linear": ("certain", systems.linear),
    "identity-head": ("certain", systems.identity_head),
    "affine-head": ("certain", systems.affine_head),
    "few-shadows": ("unknown", systems.few_shadows),
    "unfinished": ("unknown", systems.unfinished),
    "large-start": ("unknown", systems.from_a_large_start),
    "five-steps": ("unknown", systems.five_steps),
    "untrained": ("unknown", systems.untrained_network),
    "private": ("defended", systems.private),
    "noisy-updates": ("defended", systems.noisy),
    "noisy-linear": ("unknown", systems.noisy_linear),
    "averaged": ("average", systems.averaged),
}
_AT_RISK: tuple[str, ...] = ()  # cells of which "at risk" was expected before anything was run


@dataclass(frozen=True)
class _Setting:
    audits: dict[str, int]  # of each group's cells
    cells: tuple[str, ...] = tuple(_SYSTEMS)
    source: str = "digits"


_QUICK = (
    *("classes-only", "constants", "others-of-the-class", "noise-alone", "class-head"),
    *("undefended", "kept-in-a-buffer", "one-text", "linear", "identity-head"),
    *(
        "few-shadows",
        "unfinished",
        "five-steps",
        "untrained",
        "noisy-linear",
        "noisy-updates",
        "averaged",
    ),
)
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        {"null": 1, "certain": 1, "unknown": 1, "defended": 1, "average": 1}, cells=_QUICK
    ),
    "cpu": _Setting({"null": 30, "certain": 6, "unknown": 9, "defended": 15, "average": 30}),
    "paper": _Setting({"null": 100, "certain": 20, "unknown": 30, "defended": 50, "average": 100}),
}


def _run(run: Run[_Setting]) -> Outcome:
    jobs = {
        f"{name} {index}": (name, index)
        for name in run.setting.cells
        for index in range(run.setting.audits[_SYSTEMS[name][0]])
    }
    found = run.arms("auditing", _audited, jobs)
    cells = {
        name: [row for job, row in found.items() if jobs[job][0] == name]
        for name in run.setting.cells
    }
    metrics = _metrics(cells)
    return Outcome(
        metrics=metrics,
        charts=[_chart(cells)],
    )


def _audited(run: Run[_Setting], job: tuple[str, int]) -> Mapping[str, float]:
    """One audit in a folder of its own, which is removed: the word, and what it took."""
    name, index = job
    place = run.folder.path / "audits" / f"{name}-{index}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    key = run.key.fold("trust", name, index)
    records = run.records(run.setting.source)
    order = torch.randperm(len(records), generator=key.fold("order").generator())
    draw = Draw(place, key, records[order], seed=index + 1000 * run.seed)
    before = torch.get_num_threads()
    started = time.perf_counter()
    try:
        done = _SYSTEMS[name][1](draw)
    finally:
        torch.set_num_threads(before)
    row = {
        "word": float(WORDS.index(done.verdict.word)),
        "alarm": float(done.verdict.word in WORDS[:2] and OF_OTHERS not in done.verdict.detail),
        "seconds": time.perf_counter() - started,
        "overclaims": float(_overclaims(done)) if _SYSTEMS[name][0] == "average" else 0.0,
    }
    shutil.rmtree(place, ignore_errors=True)
    return row


def _overclaims(done: Audit) -> int:
    """Claimed records of made batches whose candidate is nearer to the batch's mean than to the record."""
    if done.verdict.word != "leaks":
        return 0
    count = 0
    for section in done.result.attacks:
        if not section.evidence or section.lineup is None or "averages" not in section.metrics:
            continue
        kept = read_shard(done.folder / section.evidence)
        size = 4
        truth, found = kept["targets"].double(), kept["reconstructions"].double()
        for place in (kept["rank"] == 1).nonzero()[:, 0].tolist():
            batch = truth[place // size * size : (place // size + 1) * size]
            own = (found[place] - truth[place]).norm()
            count += bool((found[place] - batch.mean(0)).norm() < own)
    return count


def _metrics(cells: Mapping[str, list[dict[str, float]]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, rows in cells.items():
        group = _SYSTEMS[name][0]
        for number, word in enumerate(WORDS):
            count = sum(row["word"] == number for row in rows)
            metrics[f"{group}.{name}.{word.replace(' ', '_')}"] = float(count)
        seconds = sorted(row["seconds"] for row in rows)
        metrics[f"{group}.{name}.seconds"] = seconds[len(seconds) // 2]
    for group in ("null", "certain", "unknown", "defended", "average"):
        own = {name: rows for name, rows in cells.items() if _SYSTEMS[name][0] == group}
        metrics[f"{group}.audits"] = float(sum(map(len, own.values())))
    words = {name: [WORDS[int(row["word"])] for row in rows] for name, rows in cells.items()}
    alarms = {
        name: int(sum(row["alarm"] for row in rows))
        for name, rows in cells.items()
        if _SYSTEMS[name][0] == "null"
    }
    audits = int(metrics["null.audits"])
    metrics["null.alarms"] = float(sum(alarms.values()))
    metrics["null.alarms_high"] = clopper_pearson(sum(alarms.values()), audits)[1]
    metrics["null.worst_cell"] = float(max(alarms.values()))
    metrics["certain.missed"] = float(
        sum(
            word != "leaks" and not (word == "at risk" and name in _AT_RISK)
            for name, said in words.items()
            if _SYSTEMS[name][0] == "certain"
            for word in said
        )
    )
    for group, word, key in (
        ("unknown", "not audited", "unknown.not_audited"),
        ("defended", "no leak found", "defended.no_leak"),
    ):
        said = [w for name, ws in words.items() if _SYSTEMS[name][0] == group for w in ws]
        metrics[key] = float(sum(w == word for w in said))
    metrics["defended.no_leak"] /= max(1.0, metrics["defended.audits"])
    overclaims = [
        row["overclaims"]
        for n, rows in cells.items()
        if _SYSTEMS[n][0] == "average"
        for row in rows
    ]
    metrics["average.overclaims"] = float(sum(overclaims))
    return metrics


def _chart(cells: Mapping[str, list[dict[str, float]]]) -> Chart:
    series = {
        word: [
            Point(name, sum(row["word"] == number for row in rows) / max(1, len(rows)))
            for name, rows in cells.items()
        ]
        for number, word in enumerate(WORDS)
    }
    return Chart("What the audits say", "system", "share of audits", series)


STUDY = Study("verdict", _SCALES, _run, spreads=True)
