"""One case met with its rows: ask, prove, line up, score, doubt. The same for every kind of release.

Every line-up that is significant by itself is drawn a second time with new strangers. Beside the deciding
one, the same test is made on people and not on averages: where each target has a release of its own, on the
tenth of the releases whose answers the attacker is surest of; otherwise with the surest tenth of all answers.
The choice sees confidences only and stays with the release when records are moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from exhume.auditing.case import Answer, Case, Question, Row, Scored, Seats
from exhume.auditing.plan import BY_HAND, TOO_LATE, stopped
from exhume.core.contract import (
    Cost,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Shard,
    Status,
    Store,
)
from exhume.core.errors import STOPPED, ExhumeError
from exhume.core.evidence import Epsilon, Extent, GroupRow, LineupRow, Premise
from exhume.core.results import Findings, Section
from exhume.score.extent import epsilon_shown, groups_in, groups_of, sentence_on_groups
from exhume.score.intervals import rate_of
from exhume.score.lineup import LEVEL, USUAL, Lineup
from exhume.score.placebo import DIFFERENT, marked, placebo
from exhume.score.places import (
    Places,
    batch_answers,
    line_up_twice,
    lineup_of,
    nearer_than_others,
    ranks_of,
)
from exhume.score.verdict import leak_of, not_audited
from exhume.store.workers import processor_seconds

_SUREST = 0.1  # share of the answers


@dataclass(frozen=True)
class Spent:
    """Time on the wall, and that of all processors of this machine."""

    seconds: float
    cpu: float

    @staticmethod
    def now() -> Spent:
        return Spent(time.perf_counter(), processor_seconds())

    def ago(self) -> Spent:
        now = Spent.now()
        return Spent(now.seconds - self.seconds, now.cpu - self.cpu)

    def more(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.cpu + other.cpu)


Earlier = dict[str, dict[int, Answer]]
"""Answers so far, by row and by the place of their question."""


def attack_case(
    case: Case,
    rows: Sequence[Row],
    store: Store,
    progress: Progress,
    *,
    tests: int,
    took: dict[str, Spent] | None = None,
) -> list[Findings]:
    """Every row on a case whose releases are made. tests: line-ups of the audit that decide something.

    took: is told what each row took.
    """
    earlier: Earlier = {}
    found: list[Findings] = []
    for row in rows:
        since = Spent.now()
        new = attack_row(case, row, store, progress, earlier=earlier, found=found, tests=tests)
        found += [new] if new is not None else []
        if took is not None:
            took[row.id] = since.ago()
    return [_on_premise(one, case.premise()) for one in case.together(found)]


def _on_premise(findings: Findings, premise: Premise | None) -> Findings:
    """With whether the release follows from the records as is assumed; where not, silence says nothing."""
    section = findings.section
    if premise is None or not section.applies:
        return findings
    doubt = section.doubt or ("" if premise.holds else premise.why)
    extent = replace(section.extent, premise=premise)
    return replace(findings, section=replace(section, doubt=doubt, extent=extent))


def attack_row(
    case: Case,
    row: Row,
    store: Store,
    progress: Progress,
    *,
    earlier: Earlier,
    found: Sequence[Findings],
    tests: int,
) -> Findings | None:
    """None: what was found before leaves nothing for it."""
    try:
        if row.certify is not None:
            return row.certify(case, found, store, progress)
        seen = case if row.view is None else row.view(case, store, progress)
        if row.look is not None:
            answers = row.look(seen, progress)
        else:
            answers = _ask(seen, row, {} if row.view else earlier, store, progress)
    except NotApplicable as why:
        return inapplicable(row, why)
    except STOPPED as why:
        return inapplicable(row, NotApplicable(stopped(progress, why), ever=True))
    if not answers:
        return None
    return findings_of(seen, row, answers, tests=tests)


def inapplicable(row: Row, why: NotApplicable) -> Findings:
    """Findings of a row that could not be mounted, or had no time."""
    section = _as_its_row(Section.inapplicable(row.spec, why), row)
    return Findings(section, not_audited(why.why))


# Ask


def _ask(case: Case, row: Row, earlier: Earlier, store: Store, progress: Progress) -> list[Answer]:
    """The row's attack on every question that is not settled; what is finished in time counts."""
    own = earlier.setdefault(row.id, {})
    questions = case.questions(row)
    for place, question in enumerate(questions):
        if len(questions) > 1:
            progress(f"{row.spec.name}: releases", place, len(questions))
        before = {name: some[place] for name, some in earlier.items() if place in some}
        asked = case.learnt(row, question, before)
        if row.when == "if needed" and case.settled(asked, list(before.values())):
            continue
        try:
            found = _reconstruct(case, row, asked, store, progress)
        except STOPPED as why:
            if not own:
                raise
            late = NotApplicable(stopped(progress, why), ever=True)
            rest = [Answer(q, Reconstruction.none(1, (), late)) for q in questions[place:]]
            return [*own.values(), *rest]
        answer = Answer(asked, found)
        own[place] = case.proved(row, asked, found) if answer.applies else answer
    if len(questions) > 1:
        progress(f"{row.spec.name}: releases", len(questions), len(questions))
    return list(own.values())


def _reconstruct(
    case: Case, row: Row, question: Question, store: Store, progress: Progress
) -> Reconstruction:
    """What the attack brings back. That it does not apply is a result, too."""

    def mount() -> Reconstruction:
        assert row.attack is not None  # it is asked nothing else
        prepared = row.attack.prepare(
            question.knowledge, key=question.key, store=store, progress=progress
        )
        try:
            found = prepared.run(question.release)
        except LinAlgError as why:
            raise NotApplicable(f"the equations are singular ({why})", ever=False) from why
        return case.as_records(row, question, found)

    if question.address is not None:
        return cached_reconstruction(store, question.address, mount)
    try:
        return mount()
    except NotApplicable as why:
        return Reconstruction.none(1, (), why)


# Line up


@dataclass(frozen=True, eq=False)
class Lined:
    """A line-up, and why it says nothing."""

    row: LineupRow | None = None
    ranks: Tensor | None = None  # (t,)
    averages: int | None = None  # candidates that are averages of their batch
    doubt: str = ""
    wrong: bool = False  # it is of other records
    surest: LineupRow | None = None
    nearer: bool = False  # what came back is nearer to its record than other records are
    epsilon: Epsilon | None = None
    groups: tuple[GroupRow, ...] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        notes = (sentence_on_groups(self.groups),) if self.groups else ()
        if not self.averages:
            return notes
        some = "1 candidate is" if self.averages == 1 else f"{self.averages} candidates are"
        return (
            f"{some} nearer to a mean of the batch than to any record: an average, which counts for none.",
            *notes,
        )


def line_up_row(
    seats: Seats | None, tests: int, *, decides: bool = False, whole: bool = False
) -> Lined:
    """Every record against everything that answers its release.

    What is nearer to a mean of a batch than to any of its records is an average, and answers nobody. Where
    the user chose the records, answers that know nothing of the release come first. decides: the verdict may
    rest on it. whole: answers are records, and not parts of them.
    """
    if seats is None:
        return Lined()
    places, key = seats.places, seats.key
    lineup, averages = _lineup(seats, seats.candidates)
    row, score = line_up_twice(places, lineup, key, tests=tests)
    lined = Lined(row, ranks_of(places, score), averages)
    if seats.wrong:
        return replace(lined, doubt=seats.wrong, wrong=True)
    if seats.placebo is not None and row.targets:
        chosen, stream, _ = seats.placebo
        by_itself = min(placebo(*seats.placebo), marked(chosen, stream))
        if by_itself <= LEVEL:
            return replace(lined, row=replace(row, p=1.0), doubt=DIFFERENT.format(by_itself))
    if not decides or not row.targets:
        return lined
    return replace(
        lined,
        surest=surest_row(seats, lineup, tests),
        nearer=whole and row.p <= LEVEL and nearer_than_others(places, lineup, seats.alike),
        epsilon=_epsilon(seats, lineup, row, tests),
        groups=groups_of(lined.ranks, seats.groups) if lined.ranks is not None else None,
    )


def _lineup(seats: Seats, candidates: Sequence[Tensor]) -> tuple[Lineup, int | None]:
    """With the number of averages among the candidates; None: there are no batches."""
    places, alike = seats.places, seats.alike
    if not seats.batches:
        return lineup_of(places, candidates, alike, seats.redealt), None
    batches = batch_answers(places, candidates, seats.batches, alike)
    return lineup_of(places, candidates, alike, batches), batches.dropped


def surest_row(seats: Seats, lineup: Lineup, tests: int) -> LineupRow | None:
    """None: the attack gives no confidences, or there is no answer."""
    places, key = seats.places, seats.key.fold("surest")
    if not any(len(sure) for sure in seats.confidence):
        return None
    if _one_each(places):
        releases = places.release[places.release >= 0]
        sure = torch.tensor([_most(seats.confidence[release]) for release in releases.tolist()])
        first = sure.argsort(descending=True, stable=True)[: ceil(_SUREST * len(releases))]
        row, _ = line_up_twice(places, lineup, key, tests=tests, only=releases[first])
        return replace(row, surest="releases")
    every = torch.cat([sure.double().cpu() for sure in seats.confidence])
    chosen = torch.zeros(len(every), dtype=torch.bool)
    chosen[every.argsort(descending=True, stable=True)[: ceil(_SUREST * len(every))]] = True
    parts = torch.split(chosen, [len(sure) for sure in seats.confidence])
    some = [
        found[part.to(found.device)] for found, part in zip(seats.candidates, parts, strict=True)
    ]
    row, _ = line_up_twice(places, _lineup(seats, some)[0], key, tests=tests)
    return replace(row, surest="answers")


def _one_each(places: Places) -> bool:
    """Every target has a release of its own."""
    releases = places.release[places.release >= 0]
    return len(releases) > 1 and len(torch.unique(releases)) == len(releases)


def _most(sure: Tensor) -> float:
    return float(sure.max()) if len(sure) else -torch.inf


def _epsilon(seats: Seats, lineup: Lineup, row: LineupRow, tests: int) -> Epsilon | None:
    """Epsilon by strangers that no two targets share where they suffice; else a line-up's estimate."""
    if not seats.game:
        return None
    measures = len(lineup.similarity)
    dealt = lineup.dealt(USUAL, seats.key.fold("epsilon"))
    if dealt is not None and seats.game == "independent":
        identified, targets, strangers = dealt
        return epsilon_shown(identified, targets, measures / (strangers + 1), rows=tests)
    chance = measures / (row.strangers + 1)
    return epsilon_shown(row.identified, row.targets, chance, rows=tests, estimate=True)


# Score, doubt


def findings_of(case: Case, row: Row, answers: Sequence[Answer], *, tests: int) -> Findings:
    """One attack's answers to all questions: lined up, scored, and what its silence would be worth."""
    ran = [answer for answer in answers if answer.applies]
    knows = tuple(dict.fromkeys(k for a in answers for k in a.question.knowledge.known()))
    if not ran:
        status = answers[0].found.status
        verdict = not_audited(case.refusal(status.reason))
        section = Section(row.spec, status, knows)
        return Findings(_as_its_row(section, row), verdict, facts=case.facts())
    decides, whole = row.role == "decides", row.whole and row.look is None
    lined = line_up_row(case.seats(row, ran), tests, decides=decides, whole=whole)
    scored = case.score(row, ran, lined.ranks)
    lineup = None if lined.wrong and scored.proved else lined.row
    leak = scored.leak if lined.row is None else leak_of(lineup)
    if scored.proved > (leak.successes if leak else 0) and (not lineup or lineup.identified):
        leak = rate_of(scored.proved, max(scored.members, scored.proved))  # a proof is a match
    metrics = dict(scored.metrics)
    if lined.averages is not None:
        metrics["averages"] = float(lined.averages)
    if leak is not None and "success" not in metrics:
        metrics |= {"success": leak.share, "success_low": leak.low, "success_high": leak.high}
    section = Section(
        row.spec,
        status_of(answers),
        knows,
        metrics,
        leak,
        lineup=lineup,
        surest=lined.surest,
        proved=scored.proved,
        doubt=lined.doubt or case.doubt(row, ran, metrics) or _late(answers),
        baselines=scored.baselines,
        cost=Cost(
            sum(answer.found.cost.seconds for answer in answers),
            sum(answer.found.cost.models for answer in answers),
        ),
        notes=scored.notes + lined.notes + _refused(answers),
        ranked_by=scored.ranked_by,
        extent=_extent(lined, scored),
    )
    facts = {**case.facts(), **scored.facts}
    return Findings(_as_its_row(section, row), scored.verdict, scored.evidence, facts, scored.risk)


def _extent(lined: Lined, scored: Scored) -> Extent:
    """How far it goes, should it leak. Reconstructed: nearer than what the adversary held, above decoys."""
    row = lined.row
    nearer = lined.nearer if scored.nearer is None else scored.nearer
    reconstructed = bool(scored.proved) or nearer
    return Extent(
        strength="reconstructed" if reconstructed else "recognised",
        expected_by_chance=row.chance * row.targets if row is not None else None,
        epsilon=lined.epsilon,
        groups=lined.groups,
    )


def _as_its_row(section: Section, row: Row) -> Section:
    """Whether it counts for the verdict, or knows more than is assumed."""
    return replace(section, counts=row.role == "decides", knows_more=row.knows)


def _refused(answers: Sequence[Answer]) -> tuple[str, ...]:
    refused = [answer.found.status.reason for answer in answers if not answer.applies]
    return (f"Not applicable to {len(refused)}: {refused[0]}.",) if refused else ()


def _late(answers: Sequence[Answer]) -> str:
    """Why silence of those that were answered in time says nothing of all."""
    late = [why for a in answers if (why := a.found.status.reason) in (TOO_LATE, BY_HAND)]
    return f"{late[0]} for {len(late)} of {len(answers)} releases" if late else ""


def status_of(answers: Sequence[Answer]) -> Status:
    """The worst of those that apply."""
    applied = [a.found.status for a in answers if a.applies]
    return next((s for s in applied if s.outcome is not Outcome.CONVERGED), applied[0])


def pooled(answers: Sequence[Answer], shape: tuple[int, ...]) -> Tensor:
    """(k, *shape) everything that was found, as candidates of one release."""
    found = [answer.found.found().double() for answer in answers]
    return torch.cat([torch.zeros(0, *shape, dtype=torch.float64), *found])


def confidences(answers: Sequence[Answer]) -> Tensor:
    """(k,) of the same candidates."""
    return torch.cat([torch.zeros(0), *(answer.found.sure().float() for answer in answers)])


def line_ups(
    case: Case, rows: Sequence[Row], store: Store, progress: Progress, *, tests: int
) -> dict[str, LineupRow]:
    """Line-ups of the attacks that apply, by id: all that a control asks for.

    A look that is no attack is left out: that something lies elsewhere says nothing of what lies here.
    """
    earlier: Earlier = {}
    lined: dict[str, LineupRow] = {}
    for row in rows:
        if row.look is not None:
            continue
        seen = case if row.view is None else row.view(case, store, progress)
        answers = _ask(seen, row, {} if row.view else earlier, store, progress)
        ran = [one for one in answers if one.applies]
        found = line_up_row(seen.seats(row, ran), tests).row if ran else None
        if found is not None:
            lined[row.id] = found
    return lined


# Groups by a column of a table


def by_group(found: Sequence[Findings], cases: Mapping[str, Case], group: str) -> list[Findings]:
    """With the share of every group of records, by a column of a table, where they were lined up."""
    columns = {name: case.inputs().columns for name, case in cases.items()}
    new = list(found)
    for place, one in enumerate(found):
        own, section = columns[one.section.release], one.section
        if group not in [column.name for column in own] or "rank" not in one.evidence:
            continue
        names = groups_in(one.evidence["targets"], own, group)
        if rows := groups_of(one.evidence["rank"], names):
            notes = (*section.notes, sentence_on_groups(rows))
            section = replace(section, extent=replace(section.extent, groups=rows), notes=notes)
            new[place] = replace(one, section=section)
    return new


def check_group(group: str, cases: Sequence[Case]) -> None:
    """Refuses a column that no release has."""
    if not group:
        return
    columns = [column.name for case in cases for column in case.inputs().columns]
    if group not in columns:
        there = f"there are {', '.join(columns)}" if columns else "what is attacked is no table"
        raise ExhumeError(f"group: no column {group!r}; {there[:300]}")


# In the store, so that a finished attack is found again when a run is taken up


def cached_reconstruction(
    store: Store, address: str, make: Callable[[], Reconstruction]
) -> Reconstruction:
    """What the store holds for the address; else made now and saved. Not applicable is a result too."""
    held = store.load(address)
    if held is None or "outcome" not in held.notes:
        try:
            found = make()
        except NotApplicable as why:
            found = Reconstruction.none(1, (), why)
        held = _packed(found)
        store.save(address, held)
    return _unpacked(held)


def _packed(found: Reconstruction) -> Shard:
    notes = {
        "outcome": found.status.outcome.value,
        "reason": found.status.reason,
        "ever": found.status.ever,
        "observed": dict(found.observed),
        "seconds": found.cost.seconds,
        "models": found.cost.models,
    }
    tensors = {"candidates": found.candidates, "confidence": found.confidence}
    return Shard(tensors if found.labels is None else tensors | {"labels": found.labels}, notes)


def _unpacked(held: Shard) -> Reconstruction:
    notes = held.notes
    return Reconstruction(
        held["candidates"],
        held["confidence"],
        Status(Outcome(notes["outcome"]), notes["reason"], notes["ever"]),
        Cost(notes["seconds"], notes["models"]),
        held.get("labels"),
        notes["observed"],
    )
