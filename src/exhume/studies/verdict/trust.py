"""Can a decision be staked on the four words? Whole audits of systems whose right verdict is known.

null      nothing of the targets is in the release: "leaks" and "at risk" are false alarms, unless what leaks
          proves itself and is said to be other records than those that were named
certain   the records are there for the taking: anything else is a miss
unknown   effort or system say nothing: anything but "not audited" claims what nobody knows
defended  a defence holds and the attack works without it: a tool that never says "no leak found" is no tool
average   only the mean of a batch can be had: no claimed record may be that mean
mixing    a client's head turns pixels round and hides nothing: "no leak found" would be false reassurance
disguised training whose outputs stay as they were, or a model that was fitted otherwise than is said
lying     wrong records, wrong training, a wrong start, a model of others: silence says nothing about these
verbatim  a third of the records lies in a parameter as it is: anything but "leaks" is a miss
fixes     what a fix is called that does next to nothing, and one that holds

Every audit draws its own system: records, weights, noise, seed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from exhume.auditing import Audit
from exhume.core.results import Chart, Point
from exhume.score.intervals import clopper_pearson
from exhume.score.verdict import OF_OTHERS
from exhume.store.shards import read_shard
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.verdict import clients, systems
from exhume.studies.verdict.systems import Draw

WORDS = ("leaks", "at risk", "no leak found", "not audited")
_SYSTEMS: dict[str, tuple[str, Callable[[Draw], Audit]]] = {
    "drowned": ("null", systems.drowned),
    "classes-only": ("null", systems.classes_only),
    "many-classes": ("null", systems.many_classes),
    "duplicates": ("null", systems.duplicates),
    "constants": ("null", systems.constants),
    "others-of-the-class": ("null", clients.others_of_the_class),
    "other-batch": ("null", clients.other_batch),
    "noise-alone": ("null", clients.noise_alone),
    "linear-of-others": ("null", systems.linear_of_others),
    "never-trained-on": ("null", systems.never_trained_on),
    "class-head": ("null", clients.class_head),
    "by-brightness": ("null", systems.by_brightness),
    "near-duplicates": ("null", systems.near_duplicates),
    "marked-batch": ("null", clients.marked_batch),
    "wide-linear": ("null", systems.wide_linear),
    "undefended": ("certain", systems.undefended),
    "undefended-mnist": ("certain", systems.undefended_mnist),
    "kept-in-a-buffer": ("certain", systems.kept_in_a_buffer),
    "one-record": ("certain", clients.one_record),
    "one-record-cnn": ("certain", clients.one_record_of_a_cnn),
    "one-text": ("certain", clients.one_text),
    "linear": ("certain", systems.linear),
    "identity-head": ("certain", clients.identity_head),
    "affine-head": ("certain", clients.affine_head),
    "few-shadows": ("unknown", systems.few_shadows),
    "unfinished": ("unknown", clients.unfinished),
    "large-start": ("unknown", systems.from_a_large_start),
    "five-steps": ("unknown", systems.five_steps),
    "untrained": ("unknown", clients.untrained_network),
    "private": ("defended", systems.private),
    "noisy-updates": ("defended", clients.noisy),
    "noisy-linear": ("unknown", systems.noisy_linear),
    "averaged": ("average", clients.averaged),
    **{
        f"{name}-{effort}": ("mixing", partial(head, epochs=epochs))
        for name, head in {
            "cosines": clients.cosine_head,
            "permuted": clients.permuted_head,
            "orthogonal": clients.orthogonal_head,
            "projected": clients.projected_head,
            "channels": clients.channels_head,
            "renamed": clients.renamed_head,
        }.items()
        for effort, epochs in (("little", 6), ("more", 25))
    },
    "rescaled": ("disguised", systems.rescaled),
    "reordered": ("disguised", systems.reordered),
    "scaled-logits": ("disguised", systems.scaled_logits),
    "weighted": ("disguised", systems.weighted),
    "standardised": ("disguised", systems.standardised),
    "wrong-records": ("lying", clients.wrong_records),
    "wrong-training": ("lying", clients.wrong_training),
    "wrong-base": ("lying", clients.wrong_base),
    "model-of-others": ("lying", systems.linear_of_others),
    "checkpoint-of-others": ("lying", systems.never_trained_on),
    **{
        name.replace("_", "-"): ("verbatim", partial(systems.verbatim, where=name))
        for name in ("kept_rows", "kept_columns", "kept_within", "kept_words")
    },
    "weak-leak": ("fixes", systems.weak_leak),
    "strong-leak": ("fixes", systems.strong_leak),
}
_NOTHING_THERE = (
    "wrong-records",
    "model-of-others",
    "checkpoint-of-others",
)  # of the named records
_FIXES = {"weak-leak": "int8", "strong-leak": "private-10"}  # the fix that is asked about


_GROUPS = {  # audits of each of its cells
    "null": 24,
    "certain": 10,
    "unknown": 10,
    "defended": 20,
    "average": 30,
    "mixing": 10,
    "disguised": 10,
    "lying": 10,
    "verbatim": 10,
    "fixes": 20,
}


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
    *("permuted-little", "scaled-logits", "wrong-records", "kept-rows", "weak-leak"),
)
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(dict.fromkeys(_GROUPS, 1), cells=_QUICK),
    "cpu": _Setting(_GROUPS),
    "paper": _Setting({group: 3 * audits for group, audits in _GROUPS.items()}),
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
    asked = [fix.verdict for fix in done.result.fixes if fix.id == _FIXES.get(name)]
    row = {
        "cleared": float("no leak found" in asked),
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
            said = sum(row["word"] == number for row in rows)
            metrics[f"{group}.{name}.{word.replace(' ', '_')}"] = float(said)
        seconds = sorted(row["seconds"] for row in rows)
        metrics[f"{group}.{name}.seconds"] = seconds[len(seconds) // 2]
    for group in _GROUPS:
        groups = [len(rows) for name, rows in cells.items() if _SYSTEMS[name][0] == group]
        metrics[f"{group}.audits"] = float(sum(groups))

    def count(group: str, *words: str) -> float:
        """Audits of a group's cells that end with one of the words."""
        said = [
            WORDS[int(row["word"])]
            for name, rows in cells.items()
            for row in rows
            if _SYSTEMS[name][0] == group
        ]
        return float(sum(word in words for word in said))

    def alarms(names: Collection[str]) -> dict[str, int]:
        return {name: int(sum(row["alarm"] for row in cells.get(name, []))) for name in names}

    null = alarms([name for name in cells if _SYSTEMS[name][0] == "null"])
    metrics["null.alarms"] = float(sum(null.values()))
    metrics["null.alarms_high"] = clopper_pearson(sum(null.values()), int(metrics["null.audits"]))[
        1
    ]
    metrics["null.worst_cell"] = float(max(null.values(), default=0))
    for group in ("certain", "verbatim"):
        metrics[f"{group}.missed"] = metrics[f"{group}.audits"] - count(group, "leaks")
    for group in ("mixing", "disguised", "lying"):
        metrics[f"{group}.reassured"] = count(group, "no leak found")
    metrics["lying.alarms"] = float(sum(alarms(_NOTHING_THERE).values()))
    metrics["unknown.not_audited"] = count("unknown", "not audited")
    metrics["defended.no_leak"] = count("defended", "no leak found")
    metrics["fixes.wrongly_cleared"] = sum(row["cleared"] for row in cells.get("weak-leak", []))
    strong = [row["cleared"] for row in cells.get("strong-leak", [])]
    metrics["fixes.rightly_cleared"] = sum(strong) / max(1, len(strong))
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
