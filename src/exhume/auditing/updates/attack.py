"""The audit of clients' updates, top to bottom: files, checks, attacks, proofs, score, verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from exhume import data
from exhume.auditing.findings import Audit, pages_of
from exhume.auditing.updates.found import Found, Truth, found_by
from exhume.auditing.updates.lines import (
    Answer,
    Line,
    attack_all,
    lines_for,
    steps_within,
    text_lines,
)
from exhume.auditing.updates.made import made_updates
from exhume.auditing.updates.reading import Case, cases_for, model_for, private_records
from exhume.auditing.updates.settings import UpdateSettings, taken_up
from exhume.choices import threads_for
from exhume.contract import Architecture, Key, Progress, Records, silent
from exhume.models.own.text import TextModel
from exhume.report.folder import RunFolder, environment
from exhume.score.verdict import gravest
from exhume.settings import to_toml

__all__ = [
    "DEVIATIONS",
    "attack_updates",
    "audit_update",
    "facts_of_updates",
    "gathered",
    "resolved_update",
    "strongest_of_updates",
]

DEVIATIONS = (
    "An update of several local steps is attacked as the average of its gradients; of an adapter, with A as "
    "it ended.",
    "Records are taken to lie in [0, 1] by gradient matching: put the client's normalisation into the model.",
)


def audit_update(
    settings: UpdateSettings, out: Path, *, progress: Progress = silent, redact: bool = False
) -> Audit:
    """Attack updates of the user's own model; write the run folder; say the verdict.

    The same settings and folder resume a stopped run and end with the same bits.
    """
    started = time.perf_counter()
    records = None
    if settings.data:
        records = data.load(settings.data, reading=settings.reading(), progress=progress)
    cases, truth = gathered(settings, records)
    folder = RunFolder.create(out)
    settings = resolved_update(taken_up(folder, settings), cases)
    folder.write_config(to_toml(settings))
    folder.write_json("environment.json", environment())
    found = attack_updates(settings, cases, truth, folder, progress)
    for one in found:
        if one.evidence:
            one.section["evidence"] = f"{one.section['id']}.safetensors"
            folder.write_tensors(one.section["evidence"], one.evidence)
    verdict = gravest([one.verdict for one in found if one.ran] or [found[0].verdict])
    folder.write_json(
        "result.json",
        {
            "schema": 1,
            "kind": "audit",
            "title": "What the updates of clients give away",
            "data": settings.data or "not given",
            "seed": settings.seed,
            "verdict": asdict(verdict),
            "attacks": [one.section for one in found],
            "victim": facts_of_updates(settings, cases, found),
            "classes": list(records.classes) if records is not None else [],
            "deviations": list(DEVIATIONS),
            "wall_seconds": time.perf_counter() - started,
        },
    )
    report, redacted = pages_of(folder, redact=redact, progress=progress)
    return Audit(verdict, strongest_of_updates(found, cases), folder.path, report, redacted)


def gathered(
    settings: UpdateSettings, records: Records | None, architecture: Architecture | None = None
) -> tuple[list[Case], Truth | None]:
    """The updates, from files or made here, and the records behind them where they are known.

    architecture: of updates that are made here; None: the user's own model.
    """
    if settings.made:
        assert records is not None  # the settings see to it
        if architecture is None:
            architecture = model_for(settings, records)
        return made_updates(settings, architecture, records, Key.from_seed(settings.seed))
    cases = cases_for(settings, records)
    if records is None:
        return cases, None
    return cases, Truth(*private_records(settings, records, [case.client for case in cases]))


def resolved_update(settings: UpdateSettings, cases: Sequence[Case]) -> UpdateSettings:
    """Threads, and the budget turned into steps, chosen once."""
    settings = replace(settings, threads=threads_for(settings.threads))
    torch.set_num_threads(settings.threads)
    if settings.search_steps or isinstance(cases[0].architecture, TextModel):
        return settings
    matching = _lines(settings, cases)[-1]
    steps = steps_within(cases[0], matching, settings.budget / len(cases))
    return replace(settings, search_steps=steps)


def _lines(settings: UpdateSettings, cases: Sequence[Case]) -> list[Line]:
    if isinstance(cases[0].architecture, TextModel):
        return text_lines(max(case.steps.count for case in cases))
    images = len(cases[0].architecture.input_shape) == 3
    return lines_for(settings, images=images, averaged=cases[0].averaged)


def attack_updates(
    settings: UpdateSettings,
    cases: Sequence[Case],
    truth: Truth | None,
    folder: RunFolder,
    progress: Progress,
) -> list[Found]:
    """Every attack on every update, attack by attack."""
    key, lines = Key.from_seed(settings.seed), _lines(settings, cases)
    answers: list[dict[str, Answer]] = []
    for place, case in enumerate(cases):
        progress("attacking updates", place, len(cases))
        own = key.fold("update", case.client, case.round)
        answers.append(attack_all(case, lines, key=own, store=folder.store(), progress=progress))
    progress("attacking updates", len(cases), len(cases))
    found = []
    for line in lines:
        given = [some[line.id] for some in answers if line.id in some]
        if given:
            found.append(found_by(line, given, truth, key.fold("score")))
    return found


# What goes into the run folder


def facts_of_updates(
    settings: UpdateSettings, cases: Sequence[Case], found: Sequence[Found]
) -> dict[str, str | float]:
    steps = max(case.steps.count for case in cases)
    sizes = sorted({case.batch_size for case in cases if case.batch_size})
    ran = {one.section["id"] for one in found}
    left = [line.name for line in _lines(settings, cases) if line.id not in ran]
    spared = {"not_run": f"{', '.join(left)}: every record is proved already"} if left else {}
    return {
        "architecture": str(cases[0].architecture),
        "loss": f"{settings.loss}, {settings.reduction} over the batch",
        "updates": len(cases),
        "clients": len({case.client for case in cases}),
        "local_steps": steps,
        "batch_size": ", ".join(map(str, sizes)) or "not given",
        "checked": ", ".join(dict.fromkeys(name for case in cases for name in case.checked)),
        **({"read_as": " ".join(cases[0].told)} if cases[0].told else {}),
        **spared,
    }


def strongest_of_updates(found: Sequence[Found], cases: Sequence[Case]) -> dict[str, float]:
    """Metrics of the attack that brought most back; a proof counts like a match."""
    best = max(found, key=lambda one: one.share(cases))
    metrics: dict[str, float] = dict(best.section["metrics"])
    return {"detectable_rate": 0.0, **metrics, "success": best.share(cases)}
