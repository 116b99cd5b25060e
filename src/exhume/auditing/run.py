"""The audit, top to bottom: read, resolve, plan, attack, judge, fix, write; for any list of releases.

A released thing is a case, an attack on it a row (`auditing.case`). One row on one case is met in
`auditing.attack`; what the findings mean is said in `auditing.judge`. All of it is the same for every kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from exhume import readers
from exhume.auditing.at_risk import with_risk
from exhume.auditing.attack import Spent, attack_case, by_group, check_group, inapplicable
from exhume.auditing.case import (
    Case,
    Kind,
    Ladder,
    Row,
    added_kind,
    packages_used,
    rows_of,
)
from exhume.auditing.findings import Audit
from exhume.auditing.fixes import fix_charts, try_fixes
from exhume.auditing.judge import Judged, holm_adjust, judge_releases, overall
from exhume.auditing.kinds import KINDS
from exhume.auditing.next_step import next_step
from exhume.auditing.plan import KEPT_BACK, Clock, Plan, PlannedRelease, plan_rows, stopped
from exhume.core.contract import (
    ExhumeError,
    NotApplicable,
    Progress,
    Records,
    Shard,
    Store,
    silent,
)
from exhume.core.errors import STOPPED
from exhume.core.evidence import Extent
from exhume.core.plugins import refuse_attacks_on_misspelt, refuse_kinds_called
from exhume.core.records import Column, filled_in
from exhume.core.results import (
    Chart,
    Facts,
    Findings,
    FixRow,
    PlannedAttack,
    ReleaseRow,
    Result,
    Section,
    Verdict,
    strongest,
)
from exhume.report.folder import (
    RunFolder,
    environment,
    refuse_inside_data,
    resume_or_refuse,
)
from exhume.report.page import draw
from exhume.score.copies import copies_among
from exhume.settings import Brief, Settings
from exhume.settings.brief import OUR_NAMES
from exhume.store.shards import NullStore


def audit(
    brief: Brief | Settings,
    out: Path,
    *,
    progress: Progress = silent,
    redact: bool = False,
    on_plan: Callable[[Plan], None] | None = None,
    resume_anyway: bool = False,
    given: Mapping[str, Case] = MappingProxyType({}),
) -> Audit:
    """Attack everything that the brief says is released; write the run folder; say the verdict.

    The same brief and folder resume a stopped run and end with the same bits. Where time is up, or after
    Ctrl-C, what is finished is judged and written all the same. on_plan: is shown what will
    be done before it is. resume_anyway: go on with the work of another version; the result says so.
    given: cases that are in memory, by their kind, in the place of what the brief names.
    """
    started = time.perf_counter()
    brief = resolve_brief(brief)
    refuse_inside_data(out, brief)
    released = read(brief, progress, given)
    with RunFolder.claimed(out, resume_anyway=resume_anyway, progress=progress) as folder:
        brief, released = resolve(brief, released, folder.store(), folder)
        folder.write_json(
            "environment.json", environment() | {"date": str(datetime.now(UTC).date())}
        )
        planned = plan_releases(brief, released)
        if on_plan is not None:
            on_plan(planned.plan)
        clock = Clock(progress)
        clock.allow(brief.budget.seconds)
        released, found, rows = attack(planned, released, folder, clock)
        found = by_group(found, {r.name: r.case for r in released}, brief.settings.data.group)
        judged = judge(brief, released, found, planned, rows=rows, folder=folder, clock=clock)
        judged = keep_evidence(judged, released, folder)
        tests = planned.tests
        fixes = fix(brief, released, judged, tests=tests, folder=folder, clock=clock)
        result = assemble(brief, released, judged, plan=rows, fixes=fixes)
        result = replace(
            result,
            next=next_of(brief, released, judged, tests),
            resumed_from=folder.resumed_from,
            wall_seconds=time.perf_counter() - started,
        )
        done = write(result, folder, redact=redact, progress=progress)
        if clock.interrupted:
            raise KeyboardInterrupt
        return done


def plan(brief: Brief | Settings, *, progress: Progress = silent) -> Plan:
    """What `audit` would do with this brief; everything is read, nothing is trained or written."""
    brief = resolve_brief(brief)
    resolved, released = resolve(brief, read(brief, progress), NullStore(), None)
    return plan_releases(resolved, released).plan


def resolve_brief(brief: Brief | Settings) -> Brief:
    """The brief in which every section says its seed, threads, records and model itself."""
    return (Brief(brief) if isinstance(brief, Settings) else brief).resolved()


# Read


@dataclass(frozen=True, eq=False)
class Released:
    """One released thing, and the kind that it is."""

    kind: Kind
    case: Case
    given: int = 0  # records that were read for it
    sets: tuple[Records, ...] = ()  # they

    @property
    def name(self) -> str:
        return self.case.title


def read(
    brief: Brief, progress: Progress, given: Mapping[str, Case] = MappingProxyType({})
) -> list[Released]:
    """Everything that the brief names, before anything is written; each set of records once."""
    loaded: dict[tuple[str, readers.TextReading], Records] = {}
    asked: dict[str, dict[tuple[str, readers.TextReading], Records]] = {}  # by kind

    def load(kind: Kind, source: str, reading: readers.TextReading) -> Records:
        if (source, reading) not in loaded:
            loaded[source, reading] = readers.load(
                source, reading=reading, missing=brief.settings.data.missing, progress=progress
            )
        records = loaded[source, reading]
        asked.setdefault(kind.name, {})[source, reading] = records
        return records

    released = []
    for kind in kinds_of(brief):
        case = given.get(kind.name) or kind.read(brief, partial(load, kind))
        if case is not None:
            sets = tuple(asked.get(kind.name, {}).values())
            released.append(Released(kind, case, sum(map(len, sets)), sets))
    if not released:
        raise ExhumeError("brief: nothing is said to be released")
    return released


def kinds_of(brief: Brief) -> list[Kind]:
    """What the brief says is released, in the order of the page; other packages' kinds come last."""
    refuse_kinds_called(OUR_NAMES)
    refuse_attacks_on_misspelt([kind.name for kind in KINDS])
    named = {"weights"} if brief.weights else set()
    named |= set(brief.releases())
    return [*(kind for kind in KINDS if kind.name in named), *map(added_kind, brief.others)]


def resolve(
    brief: Brief, released: Sequence[Released], store: Store, folder: RunFolder | None
) -> tuple[Brief, list[Released]]:
    """Every "choose for me" turned into a number, once; a folder with an earlier run keeps to its own."""
    for one in released:
        brief = one.case.resolve_settings(brief, store)
    if folder is not None:
        digests = {name: text for one in released for name, text in digests_of(one.case).items()}
        brief = resume_or_refuse(folder, brief, digests)
    check_group(brief.settings.data.group, [one.case for one in released])
    return brief, [replace(one, case=one.case.resolved(brief, store)) for one in released]


def digests_of(case: Case) -> dict[str, str]:
    """What is no file but decides the result."""
    return {**case.digests(), **packages_used(case)}


# Plan


@dataclass(frozen=True, eq=False)
class Planned:
    plan: Plan
    rows: list[tuple[Row, PlannedAttack]]

    @property
    def tests(self) -> int:
        """Line-ups that decide something, fixed before anything is attacked."""
        return sum(row.tests for row, planned in self.rows if planned.run)

    def of(self, release: str) -> list[tuple[Row, PlannedAttack]]:
        return [(row, planned) for row, planned in self.rows if planned.release == release]


def plan_releases(brief: Brief, released: Sequence[Released]) -> Planned:
    """One budget for all attacks on all releases."""
    every = [(one.name, row) for one in released for row in rows_of(one.case)]
    controls = {one.name: _easiest(one.case.ladders()) for one in released}
    budget = brief.budget.seconds
    if budget is not None:  # what the controls take, should they be needed, is kept back
        budget -= min(KEPT_BACK * budget, sum(seconds or 0.0 for seconds in controls.values()))
    rows = plan_rows(every, budget)
    releases = tuple(
        PlannedRelease(
            one.kind.name,
            one.name,
            one.case.inputs(),
            tuple(planned for _, planned in rows if planned.release == one.name),
            controls[one.name],
            one.given,
            tuple(map(copies_among, one.sets)),
        )
        for one in released
    )
    return Planned(Plan(releases, brief.budget.seconds), rows)


def _easiest(ladders: Sequence[Ladder]) -> float | None:
    seconds = next((ladder.seconds for ladder in ladders if ladder.rungs), None)
    return None if seconds is None else round(seconds, 1)


# Attack


def attack(
    planned: Planned, released: Sequence[Released], folder: RunFolder, progress: Progress
) -> tuple[list[Released], list[Findings], list[PlannedAttack]]:
    """The cases with their releases made, every finding, and the plan with what each row really took."""
    made, found, rows = list[Released](), list[Findings](), list[PlannedAttack]()
    for one in released:
        chosen = [row for row, plan in planned.of(one.name) if plan.run]
        took: dict[str, Spent] = {}
        case = one.case
        if chosen:
            torch.set_num_threads(case.inputs().threads)
            since = Spent.now()
            try:
                case = case.made(folder, progress)
            except STOPPED as why:
                late = NotApplicable(stopped(progress, why), ever=True)
                new = [inapplicable(row, late) for row in chosen]
            else:
                making = since.ago()
                now, store = made_rows(case, chosen), folder.store()
                new = attack_case(case, now, store, progress, tests=planned.tests, took=took)
                took[chosen[0].id] = took[chosen[0].id].more(making)
            found += [_marked(findings, one.name) for findings in new]
        made.append(replace(one, case=case))
        rows += [_with_cost(plan, took.get(plan.id)) for _, plan in planned.of(one.name)]
    return made, found, rows


def _with_cost(planned: PlannedAttack, spent: Spent | None) -> PlannedAttack:
    if spent is None:
        return planned
    return replace(planned, seconds=spent.seconds, cpu_seconds=spent.cpu)


def made_rows(case: Case, planned: Sequence[Row]) -> list[Row]:
    """The planned rows as they are now that the releases are made, on as many records as planned."""
    now = {row.id: row for row in rows_of(case)}
    return [replace(now[row.id], records=row.records) for row in planned]


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
    clock: Clock,
) -> Judged:
    """The verdict on each released thing; where nothing came back, after controls.

    These may take half of the budget, and what is over of it, a quarter at least.
    """
    judging = [one.section for one in found if one.section.counts or one.section.knows_more]
    refused = [1 + section.counts for section in judging if not section.applies]
    tests = planned.tests - sum(refused)  # by the release alone
    budget = brief.budget.seconds
    seconds = None if budget is None else min(budget / 2, max(budget / 4, clock.left))
    clock.allow(seconds)
    return judge_releases(
        holm_adjust(found, tests),
        {one.name: one.case.ladders() for one in released},
        rows,
        tests=planned.tests,
        seconds=seconds,
        folder=folder,
        progress=clock,
    )


def keep_evidence(judged: Judged, released: Sequence[Released], folder: RunFolder) -> Judged:
    """With the records behind every finding, and the list of those at risk, written into the folder."""
    kinds = {one.name: one.kind.name for one in released}
    columns = {one.name: one.case.inputs().columns for one in released}
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


def next_of(brief: Brief, released: Sequence[Released], judged: Judged, tests: int) -> str:
    """What to run next, for the first release of which nothing is known."""
    unknown = [one.case for one in released if judged.verdicts[one.name].word == "not audited"]
    if not unknown:
        return ""
    return next_step(unknown[0], judged, budget=brief.budget.seconds, tests=tests)


def extent_of(sections: Sequence[Section]) -> Extent:
    """How far a verdict on these attacks goes: as the strongest says, and where it is silent another.

    Records that one of them reconstructs are reconstructed.
    """
    best = strongest(sections)
    extent = best.extent if best else Extent()
    for section in sections:
        extent = extent.with_missing(section.extent)
    if any(section.extent.strength == "reconstructed" for section in sections):
        return replace(extent, strength="reconstructed")
    return extent


# Fix


def fix(
    brief: Brief,
    released: Sequence[Released],
    judged: Judged,
    *,
    tests: int,
    folder: RunFolder,
    clock: Clock,
) -> list[FixRow]:
    """Fixes of everything that leaks; as much time again as the attacks had, so that the estimate decides."""
    if not brief.budget.fixes:
        return []
    leaking = {one.name: one.case for one in released if judged.verdicts[one.name].word == "leaks"}
    clock.allow(brief.budget.seconds)
    return try_fixes(leaking, brief.budget.seconds, folder, clock, tests=tests)


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
    quoted = quoted_sections(judged)
    best = strongest(quoted)
    charts: list[Chart] = [
        chart
        for one in released
        for chart in one.case.charts([f for f in found if f.section.release == one.name])
    ]
    titles = [one.kind.title for one in released]
    inputs = [one.case.inputs() for one in released]
    return Result(
        title=titles[0] if len(titles) == 1 else "What you release, and what it gives away",
        data=", ".join(dict.fromkeys(one.data for one in inputs if one.data)) or "not given",
        seed=brief.settings.seed,
        conditions=tuple(
            replace(condition, release=one.name)
            for one in released
            for condition in one.case.conditions()
        ),
        verdict=overall(verdicts, alarm),
        leak=best.leak if best else None,
        alarm=alarm,
        attacks=tuple(one.section for one in found),
        plan=tuple(plan),
        fixes=tuple(fixes),
        releases=tuple(
            _row(one, verdicts[one.name], [s for s in quoted if s.release == one.name], fixes)
            for one in released
        ),
        controls=judged.controls,
        reach=judged.reach,
        charts=(*judged.charts, *charts, *fix_charts(fixes)),
        victim=_facts(found),
        classes=next((one.classes for one in inputs if one.classes), ()),
        deviations=tuple(dict.fromkeys(d for one in released for d in _deviations(one))),
        extent=extent_of(quoted) if len(released) == 1 else best.extent if best else Extent(),
    )


def _deviations(one: Released) -> list[str]:
    return [*one.case.deviations, *filled_in(one.case.inputs().columns)]


def _row(
    one: Released, verdict: Verdict, quoted: Sequence[Section], fixes: Sequence[FixRow]
) -> ReleaseRow:
    own = [row for row in fixes if row.release == one.name and row.tried]
    best = own[0].sentence if own and own[0].verdict == "no leak found" else ""
    if own and not best:
        best = "None of the fixes that were tried is shown to stop it."
    given, quotes = one.case.inputs(), strongest(quoted)
    return ReleaseRow(
        one.kind.name,
        one.name,
        verdict.word,
        verdict.sentence,
        verdict.detail,
        best,
        quotes.leak if quotes else None,
        given.seed,
        given.data,
        given.threads,
        extent_of(quoted),
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
