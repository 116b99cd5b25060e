"""From what the attacks found to one verdict for each release: Holm, controls, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exhume.auditing.case import Ladder
from exhume.auditing.controls import LadderResult, climb, reach_chart
from exhume.auditing.look import STORED
from exhume.core.contract import Progress
from exhume.core.evidence import ControlRow, LineupRow, Reach
from exhume.core.results import Chart, Findings, PlannedAttack, Section, Verdict, Word
from exhume.report.folder import RunFolder
from exhume.score.lineup import among_tests, holm
from exhume.score.verdict import (
    broken,
    found_something,
    gravest,
    not_audited,
    noticed,
    silent,
    unsettled,
    verdict_on,
)


@dataclass(frozen=True, eq=False)
class Judged:
    """Every finding with its word, and a verdict for each release."""

    found: list[Findings]
    verdicts: dict[str, Verdict]
    controls: tuple[ControlRow, ...] = ()
    reach: tuple[Reach, ...] = ()
    charts: tuple[Chart, ...] = ()


def holm_adjust(found: Sequence[Findings], planned: int) -> list[Findings]:
    """p-values for all line-ups of the audit (Holm), and what each could notice at the level that leaves it.

    planned: tests that were fixed before; all count. A deciding attack has two: of all records, and of the
    tenth that it is surest of.
    """
    rows = [
        (place, name, row) for place, one in enumerate(found) for name, row in _tested(one).items()
    ]
    values = [row.p for _, _, row in rows]
    values += [1.0] * max(0, planned - len(values))
    new = list(found)
    for (place, name, tested), p in zip(rows, holm(values), strict=False):
        row = replace(among_tests(tested, len(values)), adjusted=p)
        section = new[place].section
        if name == "surest":
            new[place] = replace(new[place], section=replace(section, surest=row))
            continue
        leak = section.leak and replace(section.leak, detectable=row.detectable)
        new[place] = replace(new[place], section=replace(section, lineup=row, leak=leak))
    return new


def _tested(one: Findings) -> dict[str, LineupRow]:
    """Its line-ups that decide something."""
    section = one.section
    if not one.tested:
        return {}
    rows = {"lineup": section.lineup, "surest": section.surest if section.counts else None}
    return {name: row for name, row in rows.items() if row is not None}


def judge_releases(
    found: Sequence[Findings],
    ladders: Mapping[str, Sequence[Ladder]],
    plan: Sequence[PlannedAttack],
    *,
    tests: int,
    seconds: float | None,
    folder: RunFolder,
    progress: Progress,
) -> Judged:
    """The verdict on each release, by its name; where all attacks are silent, after controls.

    ladders: of each release; tests: line-ups of the audit that decide something. seconds: that all controls
    may take; None: no limit. One attack that succeeds is enough; where one did not do its work, silence of
    the others says nothing.
    """
    new, verdicts = list[Findings](), dict[str, Verdict]()
    controls, reaches, charts = list[ControlRow](), list[Reach](), list[Chart]()
    for release, easier in ladders.items():
        own = [one for one in found if one.section.release == release]
        climbed, names = LadderResult((), {}), _to_control(own)
        rows = {o.section.spec.id: r for o in own if (r := o.section.lineup) is not None}
        if names:
            climbed = climb(
                release,
                easier,
                names,
                rows,
                tests=tests,
                seconds=seconds,
                folder=folder,
                progress=progress,
            )
            seconds = None if seconds is None else max(0.0, seconds - climbed.seconds)
            controls += climbed.controls
            reaches += climbed.reach.values()
            drawn = [reach_chart(release, ladder, climbed, rows, names) for ladder in easier]
            charts += [chart for chart in drawn if chart is not None]
        counted = any(rung.counts for ladder in easier for rung in ladder.rungs)
        own = [
            _attach_verdict(one, climbed.reach.get(one.section.spec.id), counted=counted)
            for one in own
        ]
        verdicts[release] = _of_release(own, climbed.reach, plan, release)
        new += own
    return Judged(new, verdicts, tuple(controls), tuple(reaches), tuple(charts))


def _to_control(own: Sequence[Findings]) -> dict[str, str]:
    """Attacks on a release on which all are silent, names by id; none: nothing to earn."""
    counted = [one.section for one in own if one.counts]
    deciding = [*counted, *(one.section for one in own if one.section.knows_more)]
    if any(found_something(section) for section in deciding) or _doubts(counted):
        return {}
    attacks = [section for section in counted if section.spec != STORED]  # a look earns nothing
    return {section.spec.id: section.spec.name for section in attacks if silent(section)}


def _doubts(counted: Sequence[Section]) -> list[str]:
    return [why for section in counted if section.applies and (why := _unsettled(section))]


def _unsettled(section: Section) -> str:
    return "" if found_something(section) and not section.doubt else unsettled(section)


def _attach_verdict(one: Findings, reach: Reach | None, *, counted: bool) -> Findings:
    """With the verdict of its line-up; what was never lined up keeps the room's own words.

    counted: there are versions in which a record counts more than once.
    """
    section = one.section
    if section.lineup is None and not section.proved:
        return one
    verdict = verdict_on(section, reach)
    distance = reach.distance if reach is not None else None
    if counted and verdict.word == "leaks":
        distance = 1
        detail = f"{verdict.detail} A record that is trained on once is enough (distance 1)."
        verdict = replace(verdict, detail=detail)
    section = replace(section, extent=replace(section.extent, distance=distance))
    if (
        section.leak is not None
        and section.lineup is not None
        and reach is not None
        and reach.nearest
    ):
        power = replace(section.leak, detectable=noticed(section.lineup, reach))
        section = replace(section, leak=power)
    extent = section.extent
    if verdict.word != "leaks":
        extent = replace(extent, strength=None)
    section = replace(section, verdict=verdict.word, extent=extent)
    return replace(one, section=section, verdict=verdict)


def _of_release(
    own: Sequence[Findings],
    reach: Mapping[str, Reach],
    plan: Sequence[PlannedAttack],
    release: str,
) -> Verdict:
    deciding = [one for one in own if one.section.counts or one.section.knows_more]
    if not deciding:
        return not_audited(_left_out(plan, release))
    deciding.sort(key=lambda one: (one.share, _reach_low(one, reach)), reverse=True)
    verdict = gravest([one.verdict for one in deciding])
    if verdict.word == "not audited":
        return _why_not(deciding, reach)
    return verdict


def _reach_low(one: Findings, reach: Mapping[str, Reach]) -> float:
    found = reach.get(one.section.spec.id)
    return found.low if found is not None else -1.0


def _why_not(deciding: Sequence[Findings], reach: Mapping[str, Reach]) -> Verdict:
    """The doubt about the attack that got furthest; else what controls showed, or why nothing was mounted."""
    ran = [one for one in deciding if one.section.applies]
    doubted = [one for one in ran if unsettled(one.section)]
    controlled = [one for one in ran if one.section.spec.id in reach]
    return (doubted or controlled or ran or list(deciding))[0].verdict


def _left_out(plan: Sequence[PlannedAttack], release: str) -> str:
    """Why nothing was run."""
    rows = [row for row in plan if row.release == release]
    if len(rows) == 1:
        return rows[0].why.removeprefix("does not apply: ")
    return "; ".join(f"{row.name}: {row.why}" for row in rows)


def overall(verdicts: Mapping[str, Verdict], alarm: str) -> Verdict:
    """A single release's verdict; of several releases one word for the whole, and every sentence.

    One release that leaks is enough; silence about all needs silence of each, so that one that was not
    audited leaves the whole not audited.
    """
    several = list(verdicts.values())
    if alarm:
        return broken(alarm)
    if len(several) == 1:
        return several[0]
    gravest_first: tuple[Word, ...] = ("leaks", "at risk", "not audited", "no leak found")
    by_word = {
        word: [name for name, one in verdicts.items() if one.word == word] for word in gravest_first
    }
    word = next(word for word, names in by_word.items() if names)
    some = f"{len(by_word[word])} of {len(several)} releases"
    unknown = f"nothing is known about {', '.join(by_word['not audited'])}"
    rest = f"; {unknown}" if by_word["not audited"] else ""
    quiet = "; no leak was found in the others" if by_word["no leak found"] else ""
    sentences = {
        "leaks": f"{some} leak{rest}.",
        "at risk": f"{some} are at risk{rest}.",
        "not audited": f"Not audited: {unknown}{quiet}.",
        "no leak found": f"No leak found in {some}.",
    }
    detail = " ".join(f"{name.capitalize()}: {one.sentence}" for name, one in verdicts.items())
    return Verdict(word, sentences[word], detail)
