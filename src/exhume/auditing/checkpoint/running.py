"""An attack on one checkpoint: run it, score it against what the owner gave, say what it rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from exhume.auditing.at_risk import factors_of_one
from exhume.auditing.checkpoint.approach import Approach
from exhume.auditing.checkpoint.conditions import doubt_of
from exhume.auditing.checkpoint.findings import margin_findings, unscored_findings
from exhume.auditing.checkpoint.fit import Fit
from exhume.auditing.checkpoint.preprocessing import Preprocessing
from exhume.auditing.checkpoint.scoring_records import ScoringRecords
from exhume.auditing.checkpoint.vector_findings import vector_findings
from exhume.core.contract import (
    Architecture,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    Store,
    Weights,
)
from exhume.core.evidence import Condition, LineupRow
from exhume.core.results import AttackSpec, Facts, Findings, Section
from exhume.models.heads import Head
from exhume.readers.checkpoint import Checkpoint
from exhume.score.lineup import LEVEL
from exhume.score.margin import alike_vectors, score_margin, score_vectors
from exhume.score.placebo import DIFFERENT, placebo
from exhume.score.places import line_up, places_for
from exhume.score.verdict import not_audited
from exhume.settings import CheckpointSettings
from exhume.victims import secret_of

__all__ = ["Attack", "Control", "Subject", "attack_checkpoint", "control"]

_TUNED = (
    "the attack explains all weights by training records, and those of a fine-tuned network are mostly its "
    "base's; audit an adapter or difference of few steps as [update], the way of fine-tuning as [victim] "
    "with start"
)


@dataclass(frozen=True, eq=False)
class Control:
    """A network that was trained here."""

    release: Weights
    centre: Tensor  # (*shape) what its records lost before they entered
    trained: Records
    others: Records
    preprocessing: Preprocessing


Attack = Callable[[Control, Store, Progress], LineupRow]


@dataclass(frozen=True, eq=False)
class Subject:
    """A checkpoint, and everything that is known of it before an attack."""

    settings: CheckpointSettings
    checkpoint: Checkpoint
    preprocessing: Preprocessing
    head: Head
    given: ScoringRecords | None  # for scoring only
    fit: Fit | None
    approach: Approach
    conditions: tuple[Condition, ...]

    @property
    def spec(self) -> AttackSpec:
        return self.approach.spec(self.preprocessing.noun)

    @property
    def facts(self) -> Facts:
        facts: Facts = {"checkpoint": self.settings.file.name}
        if self.settings.base:
            facts["base"] = Path(self.settings.base).name
        return facts | {
            "architecture": str(self.checkpoint.architecture),
            "head": self.head,
            "read_as": " ".join(self.checkpoint.inferred),
            "records_by_the_spectrum": float(self.approach.records),
        }

    def run(
        self,
        release: Weights,
        knowledge: Knowledge,
        preprocessing: Preprocessing,
        key: Key,
        *,
        store: Store,
        progress: Progress,
    ) -> Reconstruction:
        """What the attack brings back, as records."""
        attack = self.approach.mounted(self.settings, self.head, preprocessing.size)
        prepared = attack.prepare(knowledge, key=key, store=store, progress=progress)
        found = prepared.run(release)
        return replace(found, candidates=preprocessing.records(found.candidates))


def attack_checkpoint(subject: Subject, store: Store, progress: Progress) -> Findings:
    """The findings; where the attack does not apply after all, why."""
    network, preprocessing = subject.approach.architecture, subject.preprocessing
    knowledge = Knowledge(architecture=network, centre=preprocessing.centre)
    key = Key.from_seed(subject.settings.seed).fold("attack")
    knows = knowledge.known()
    try:
        found = subject.run(
            subject.checkpoint.release,
            knowledge,
            preprocessing,
            key,
            store=store,
            progress=progress,
        )
    except NotApplicable as why:
        return _refused(subject, knows, why)
    if found.status.outcome is Outcome.NOT_APPLICABLE:
        return _refused(subject, knows, NotApplicable(found.status.reason, ever=found.status.ever))
    if subject.given is None:
        return unscored_findings(
            subject.spec,
            knows,
            found,
            preprocessing.middle,
            confidence=subject.approach.confidence,
            facts=subject.facts,
        )
    progress("scoring", 0, 1)
    findings = _scored(subject, subject.given, found, knows, key)
    progress("scoring", 1, 1)
    return findings


def _refused(subject: Subject, knows: tuple[str, ...], why: NotApplicable) -> Findings:
    """By the weights themselves: a condition that fails says it better."""
    section = Section.inapplicable(subject.spec, why, knows)
    because = doubt_of(subject.conditions) or why.why
    return Findings(section, not_audited(because), facts=subject.facts)


def _scored(
    subject: Subject,
    given: ScoringRecords,
    found: Reconstruction,
    knows: tuple[str, ...],
    key: Key,
) -> Findings:
    fit, images = subject.fit, subject.preprocessing.images
    assert fit is not None  # there are records
    lineup, ranks = lined_up(found, given.trained, given.strangers, key.fold("line-up"))
    lineup, doubt = _doubted(subject, given, lineup)
    beside = {"rows": given.rows, "rank": ranks}
    if fit.margins is not None and subject.head == "multiclass":
        entering = replace_inputs(
            given.trained, subject.preprocessing.entering(given.trained.inputs)
        )
        weights = subject.checkpoint.release.parameters[0]
        beside |= factors_of_one(subject.approach.architecture, weights, entering, torch.zeros(()))
    facts, notes = subject.facts | fit.facts, (*given.notes, *fit.notes)
    secret = secret_of(given.trained)
    if not images:
        return vector_findings(
            subject.spec,
            knows,
            found,
            score_vectors(secret, found, given.decoys),
            given,
            margins=fit.margins,
            beside=beside,
            notes=notes,
            facts=facts,
            lineup=lineup,
            doubt=doubt,
        )
    return margin_findings(
        subject.spec,
        knows,
        found,
        score_margin(secret, found, given.decoys, subject.preprocessing.middle),
        given.decoys,
        margins=fit.margins,
        beside=beside,
        notes=notes,
        facts=facts,
        lineup=lineup,
        doubt=doubt,
    )


def replace_inputs(records: Records, inputs: Tensor) -> Records:
    return Records(inputs, records.labels, records.classes)


def lined_up(
    found: Reconstruction, trained: Records, others: Records, key: Key
) -> tuple[LineupRow, Tensor]:
    """One release, many members: every candidate answers it."""
    release = torch.zeros(len(trained), dtype=torch.long)
    places = places_for(trained, release, others, key.fold("places"))
    alike = alike_vectors if len(trained.shape) == 1 else None
    return line_up(places, [found.found()], key, alike=alike)


def _doubted(subject: Subject, given: ScoringRecords, lineup: LineupRow) -> tuple[LineupRow, str]:
    """Why silence says nothing: a premise that does not hold. The records may also differ by themselves."""
    key = Key.from_seed(subject.settings.seed)
    none = torch.zeros(len(given.trained), dtype=torch.long)
    places = places_for(given.trained, none, given.strangers, key.fold("placebo places"))
    alike = alike_vectors if not subject.preprocessing.images else None
    by_itself = placebo(places, key.fold("placebo"), alike)
    if by_itself <= LEVEL:
        return replace(lineup, p=1.0), DIFFERENT.format(by_itself)
    return lineup, _TUNED if subject.settings.base else doubt_of(subject.conditions)


def control(subject: Subject, architecture: Architecture) -> Attack:
    """The same attack on a network that was trained here."""

    def attack(one: Control, store: Store, progress: Progress) -> LineupRow:
        key = Key.from_seed(subject.settings.seed).fold("control")
        known = Knowledge(architecture=architecture, centre=one.centre)
        found = subject.run(
            one.release, known, one.preprocessing, key, store=store, progress=progress
        )
        return lined_up(found, one.trained, one.others, key)[0]

    return attack
