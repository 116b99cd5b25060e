"""The audit, top to bottom: read, plan, attack, judge, fix, write; for any list of releases."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from exhume import readers
from exhume.auditing.at_risk import with_risk
from exhume.auditing.controls import Ladder
from exhume.auditing.findings import Audit
from exhume.auditing.fixes import fix_charts, try_fixes
from exhume.auditing.judging import Judged, adjusted, controlled, overall
from exhume.auditing.plan import AttackOption, Plan, PlannedRelease, plan_attacks
from exhume.auditing.release import AuditedRelease, Room
from exhume.auditing.resume import refuse_inside_data, resume_or_refuse
from exhume.auditing.rooms import ROOMS
from exhume.core.contract import ExhumeError, Progress, Records, Shard, Store, silent
from exhume.core.records import Column
from exhume.core.results import (
    Chart,
    Facts,
    Findings,
    FixRow,
    PlannedAttack,
    Rate,
    ReleaseRow,
    Result,
    Section,
    Verdict,
    strongest,
)
from exhume.report.folder import RunFolder, environment
from exhume.report.page import draw
from exhume.settings import Brief, Settings
from exhume.store.shards import NullStore

__all__ = ["audit", "plan"]

_KEPT_BACK = 0.3  # of a budget, at most, for controls


def audit(
    brief: Brief | Settings,
    out: Path,
    *,
    progress: Progress = silent,
    redact: bool = False,
    on_plan: Callable[[Plan], None] | None = None,
    resume_anyway: bool = False,
    given: Mapping[str, AuditedRelease] = MappingProxyType({}),
) -> Audit:
    """Attack everything that the brief says is released; write the run folder; say the verdict.

    The same brief and folder resume a stopped run and end with the same bits. on_plan: is shown what will
    be done before it is. resume_anyway: go on with the work of another version; the result says so.
    given: releases that are in memory, by their kind, in the place of what the brief names.
    """
    started = time.perf_counter()
    brief = _whole(brief)
    refuse_inside_data(out, brief)
    released = read(brief, progress, given)
    with RunFolder.claimed(out, resume_anyway=resume_anyway, progress=progress) as folder:
        brief, released = choose(brief, released, folder.store(), folder)
        folder.write_json("environment.json", environment())
        planned = plan_releases(brief, released)
        if on_plan is not None:
            on_plan(planned.plan)
        found, rows = attack(planned, folder, progress)
        judged = judge(brief, released, found, planned, rows=rows, folder=folder, progress=progress)
        fixes = fix(brief, released, judged, folder, progress)
        result = assemble(brief, released, judged, plan=rows, fixes=fixes)
        result = replace(
            result, resumed_from=folder.resumed_from, wall_seconds=time.perf_counter() - started
        )
        return write(result, folder, redact=redact, progress=progress)


def plan(brief: Brief | Settings, *, progress: Progress = silent) -> Plan:
    """What `audit` would do with this brief; everything is read, nothing is trained or written."""
    brief = _whole(brief)
    chosen, released = choose(brief, read(brief, progress), NullStore(), None)
    return plan_releases(chosen, released).plan


def _whole(brief: Brief | Settings) -> Brief:
    return (Brief(brief) if isinstance(brief, Settings) else brief).resolved()


# Read


@dataclass(frozen=True, eq=False)
class Released:
    """One released thing, and the room it belongs to."""

    room: Room
    release: AuditedRelease
    given: int = 0  # records that were read for it

    @property
    def name(self) -> str:
        return self.release.title


def read(
    brief: Brief, progress: Progress, given: Mapping[str, AuditedRelease] = MappingProxyType({})
) -> list[Released]:
    """Everything that the brief names, before anything is written; each set of records once."""
    loaded: dict[tuple[str, readers.Reading], Records] = {}

    asked: dict[str, dict[tuple[str, readers.Reading], int]] = {}  # by room

    def load(room: Room, source: str, reading: readers.Reading) -> Records:
        if (source, reading) not in loaded:
            loaded[source, reading] = readers.load(source, reading=reading, progress=progress)
        found = loaded[source, reading]
        asked.setdefault(room.kind, {})[source, reading] = len(found)
        return found

    released = []
    for room in ROOMS:
        release = given.get(room.kind) or room.read(brief, partial(load, room))
        if release is not None:
            records = sum(asked.get(room.kind, {}).values())
            released.append(Released(room, release, records))
    if not released:
        raise ExhumeError("brief: nothing is said to be released")
    return released


def choose(
    brief: Brief, released: Sequence[Released], store: Store, folder: RunFolder | None
) -> tuple[Brief, list[Released]]:
    """Every "choose for me" turned into a number, once; a folder with an earlier run keeps to its own."""
    for one in released:
        brief = one.release.choose(brief, store)
    if folder is not None:
        digests = {k: v for one in released for k, v in one.release.digests().items()}
        brief = resume_or_refuse(folder, brief, digests)
    return brief, [replace(one, release=one.release.chosen(brief, store)) for one in released]


# Plan


@dataclass(frozen=True, eq=False)
class Planned:
    plan: Plan
    options: list[tuple[AttackOption, PlannedAttack]]
    threads: Mapping[str, int]  # by release
    kinds: Mapping[str, str]


def plan_releases(brief: Brief, released: Sequence[Released]) -> Planned:
    """One budget for all attacks on all releases."""
    every = [
        replace(option, release=one.name) for one in released for option in one.release.options()
    ]
    controls = {one.name: _easiest(one.release.ladder()) for one in released}
    budget = brief.budget.seconds
    if budget is not None:  # what the controls take, should they be needed, is kept back
        budget -= min(_KEPT_BACK * budget, sum(seconds or 0.0 for seconds in controls.values()))
    options = plan_attacks(every, budget)
    rows = tuple(
        PlannedRelease(
            one.room.kind,
            one.name,
            one.release.inputs(),
            tuple(row for _, row in options if row.release == one.name),
            controls[one.name],
            one.given,
        )
        for one in released
    )
    threads = {row.name: row.inputs.threads for row in rows}
    kinds = {row.name: row.kind for row in rows}
    return Planned(Plan(rows, brief.budget.seconds), options, threads, kinds)


def _easiest(ladder: Ladder | None) -> float | None:
    return round(ladder.rungs[0].seconds, 1) if ladder is not None and ladder.rungs else None


# Attack


def attack(
    planned: Planned, folder: RunFolder, progress: Progress
) -> tuple[list[Findings], list[PlannedAttack]]:
    """Every attack that was chosen, and the plan with what each really took."""
    found: list[Findings] = []
    rows: list[PlannedAttack] = []
    for option, row in planned.options:
        if not row.run or option.run is None:
            rows.append(row)
            continue
        torch.set_num_threads(planned.threads[row.release])
        started = time.perf_counter()
        new = option.run(folder, progress)
        rows.append(replace(row, seconds=time.perf_counter() - started))
        found += [_marked(findings, row.release) for findings in new]
    return found, rows


def _marked(findings: Findings, release: str) -> Findings:
    section = replace(findings.section, release=release, verdict=findings.verdict.word)
    return replace(findings, section=section)


# Judge


def judge(
    brief: Brief,
    released: Sequence[Released],
    found: Sequence[Findings],
    planned: Planned,
    *,
    rows: Sequence[PlannedAttack],
    folder: RunFolder,
    progress: Progress,
) -> Judged:
    """The verdict on each released thing; where nothing came back, after controls."""
    tests = sum(option.tests for option, row in planned.options if row.run)
    judging = [one.section for one in found if not one.section.beside]
    tests -= sum(not section.applies for section in judging)  # which depends on the release alone
    ladders = {one.name: one.release.ladder() for one in released}
    budget = brief.budget.seconds
    judged = controlled(
        adjusted(found, tests),
        ladders,
        rows,
        seconds=None if budget is None else budget / 2,
        folder=folder,
        progress=progress,
    )
    kinds = planned.kinds
    columns = {one.name: one.release.inputs().columns for one in released}
    kept = [
        folder.keep(_with_columns(one, columns[one.section.release]))
        for one in with_risk(judged.found, folder, kinds)
    ]
    return replace(judged, found=kept)


def _with_columns(one: Findings, columns: Sequence[Column]) -> Findings:
    """The names and ranges of a table's columns lie beside the records, not in the result."""
    if not columns or not one.evidence:
        return one
    notes = one.evidence.notes if isinstance(one.evidence, Shard) else {}
    notes = {**notes, "columns": [asdict(column) for column in columns]}
    return replace(one, evidence=Shard(one.evidence, notes))


def quoted_sections(judged: Judged) -> list[Section]:
    """What counts; where a release earned "no leak found", only the attacks that earned it."""
    earned = {name for name, one in judged.verdicts.items() if one.word == "no leak found"}
    counted = [one.section for one in judged.found if one.section.counts]
    return [s for s in counted if s.release not in earned or s.verdict == "no leak found"]


def leaks_of(judged: Judged) -> dict[str, Rate | None]:
    """How much leaks, by release."""
    quoted = quoted_sections(judged)
    best = {name: strongest([s for s in quoted if s.release == name]) for name in judged.verdicts}
    return {name: section.leak if section else None for name, section in best.items()}


# Fix


def fix(
    brief: Brief,
    released: Sequence[Released],
    judged: Judged,
    folder: RunFolder,
    progress: Progress,
) -> list[FixRow]:
    """Of everything that leaks; as much time again as the attacks had, so that the estimate decides."""
    if not brief.budget.fixes:
        return []
    fixes = [
        replace(one, release=leaking.name)
        for leaking in released
        if judged.verdicts[leaking.name].word == "leaks"
        for one in leaking.release.fixes()
    ]
    return try_fixes(fixes, leaks_of(judged), brief.budget.seconds, folder, progress)


# Write


def assemble(
    brief: Brief,
    released: Sequence[Released],
    judged: Judged,
    *,
    plan: Sequence[PlannedAttack],
    fixes: Sequence[FixRow],
) -> Result:
    found, verdicts = judged.found, judged.verdicts
    alarm = " ".join(one.section.limits.alarm for one in found if one.section.limits).strip()
    leaks, best = leaks_of(judged), strongest(quoted_sections(judged))
    charts: list[Chart] = [
        chart
        for one in released
        for chart in one.release.charts([f for f in found if f.section.release == one.name])
    ]
    titles = [one.room.title for one in released]
    inputs = [one.release.inputs() for one in released]
    return Result(
        title=titles[0] if len(titles) == 1 else "What you release, and what it gives away",
        data=", ".join(dict.fromkeys(one.data for one in inputs if one.data)) or "not given",
        seed=brief.settings.seed,
        conditions=tuple(
            replace(condition, release=one.name)
            for one in released
            for condition in one.release.conditions()
        ),
        verdict=overall(verdicts, alarm),
        leak=best.leak if best else None,
        alarm=alarm,
        attacks=tuple(one.section for one in found),
        plan=tuple(plan),
        fixes=tuple(fixes),
        releases=tuple(_row(one, verdicts[one.name], leaks[one.name], fixes) for one in released),
        controls=judged.controls,
        reach=judged.reach,
        charts=(*judged.charts, *charts, *fix_charts(fixes, leaks)),
        victim=_facts(found),
        classes=next((one.classes for one in inputs if one.classes), ()),
        deviations=tuple(dict.fromkeys(d for one in released for d in one.release.deviations)),
    )


def _row(one: Released, verdict: Verdict, leak: Rate | None, fixes: Sequence[FixRow]) -> ReleaseRow:
    own = [row for row in fixes if row.release == one.name and row.tried]
    best = own[0].sentence if own and own[0].verdict == "no leak found" else ""
    if own and not best:
        best = "None of the fixes that were tried is shown to stop it."
    given = one.release.inputs()
    return ReleaseRow(
        one.room.kind,
        one.name,
        verdict.word,
        verdict.sentence,
        verdict.detail,
        best,
        leak,
        given.seed,
        given.data,
        given.threads,
    )


def _facts(found: Sequence[Findings]) -> Facts:
    facts: Facts = {}
    for findings in found:
        for name, value in findings.facts.items():
            if facts.setdefault(name, value) != value:
                facts[f"{name} ({findings.section.spec.name})"] = value
    return facts


def write(result: Result, folder: RunFolder, *, redact: bool, progress: Progress) -> Audit:
    """The result and its page, and a page without records where it is asked for."""
    folder.write_json("result.json", result.to_json())
    progress("drawing the report", 0, 1)
    report = draw(folder.path)
    redacted = draw(folder.path, redact=True) if redact else None
    progress("drawing the report", 1, 1)
    return Audit(result, folder.path, report, redacted)
