"""A file of weights, as it is: training images from the weights alone (Buzaglo23).

The attack sees the tensors, the activation and the released preprocessing. The training records are opened
afterwards, to score; without them there is a page of reconstructions and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan
from exhume.attacks.margin.strongest import Strongest
from exhume.auditing.at_risk import factors_of_one
from exhume.auditing.checkpoint.findings import margin_findings, unscored_findings
from exhume.auditing.checkpoint.fit import Fit, fit_of
from exhume.auditing.checkpoint.ladder import checkpoint_ladder, recipe_like
from exhume.auditing.checkpoint.scoring_records import (
    ScoringRecords,
    mean_given,
    records_given,
    shape_of,
)
from exhume.auditing.controls import Ladder
from exhume.auditing.estimate import forward_operations, seconds_of
from exhume.auditing.fine_tuned import against_of
from exhume.auditing.plan import AttackOption
from exhume.auditing.release import AuditedRelease, Inputs, Load
from exhume.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Records,
    Store,
)
from exhume.evidence import LineupRow
from exhume.models.heads import Head, check_head
from exhume.report.folder import RunFolder
from exhume.results import AttackSpec, Facts, Findings
from exhume.score.lineup import LEVEL
from exhume.score.margin import score_margin
from exhume.score.placebo import DIFFERENT, placebo
from exhume.score.places import line_up, places_for
from exhume.settings import Brief, CheckpointSettings
from exhume.store import NullStore, digest
from exhume.train.margin import MarginDescent
from exhume.victims.checkpoint import Checkpoint, read_checkpoint, secret_of
from exhume.victims.margin import MarginVictim

__all__ = ["CheckpointRelease", "read_checkpoint_release"]

_ALONE = "sees the weights; knows nothing else"
_FIRST = AttackSpec(
    "first-layer", "Training images from the first layer", "Buzaglo23", "the released weights"
)
_HIDDEN = AttackSpec(
    "hidden-span",
    "Training images from the span of hidden activations",
    "Buzaglo23",
    "the released weights",
)
_CONFIDENCE = {
    _FIRST.id: "Confidence is the cosine with the nearest candidate of another restart; with one restart, "
    "the share of the weights that a candidate explains.",
    _HIDDEN.id: "Confidence is minus the share of a candidate's hidden activations outside the second "
    "layer's span.",
}
_TUNED = (
    "the attack explains all weights by training records, and those of a fine-tuned network are mostly its "
    "base's; audit an adapter or difference of few steps as [update], the way of fine-tuning as [victim] "
    "with start"
)
_DEVIATIONS = (
    "Where weight decay has removed the second layer's start, records are sought one by one in its span; "
    "else only the first layer is explained. Buzaglo23 explains all layers.",
    "The number of training records is read off the first layer's spectrum.",
    "Images are matched at full resolution, not at half.",
)


def read_checkpoint_release(brief: Brief, load: Load) -> CheckpointRelease | None:
    """Read everything that the settings name; nothing in the files is run."""
    settings = brief.checkpoint
    if settings is None:
        return None
    if not settings.file.exists():
        raise ExhumeError(f"checkpoint: there is no file {settings.file}")
    given, key = None, Key.from_seed(settings.seed)
    if settings.trained_on:
        given = records_given(settings.trained_on, settings.rows, settings.decoys, key, load=load)
    shape = shape_of(settings, given)
    centre = mean_given(settings.mean, shape)
    tuned = against_of(settings)
    try:
        checkpoint = read_checkpoint(
            settings.file,
            activation=settings.activation,
            shape=shape,
            trust=settings.trust,
            against=tuned[1] if tuned else None,
        )
    except NotApplicable as why:
        return CheckpointRelease(settings, why, centre, given)
    head = _head(settings.head, checkpoint.architecture.outputs)
    return CheckpointRelease(settings, checkpoint, centre, given, head)


@dataclass(frozen=True, eq=False)
class CheckpointRelease(AuditedRelease):
    settings: CheckpointSettings
    checkpoint: Checkpoint | NotApplicable  # as the attack takes it, or why it cannot
    centre: Tensor | None
    given: ScoringRecords | None  # what the owner gave to score with
    head: Head = "multiclass"
    threads: int = 0

    @property
    def title(self) -> str:
        return "the checkpoint"

    @cached_property
    def fit(self) -> Fit:
        """Of a checkpoint that can be attacked, to the records that the owner gave."""
        assert isinstance(self.checkpoint, Checkpoint)  # asked before
        assert self.given is not None
        return fit_of(self.checkpoint, self.given.trained, self.middle, self.head)

    @property
    def middle(self) -> Tensor:
        """What inputs lose before they enter; where nobody says it, half of their range."""
        assert isinstance(self.checkpoint, Checkpoint)
        grey = torch.full(self.checkpoint.architecture.input_shape, 0.5)
        return grey if self.centre is None else self.centre

    @property
    def deviations(self) -> tuple[str, ...]:
        return _DEVIATIONS

    def digests(self) -> dict[str, str]:
        if isinstance(self.checkpoint, NotApplicable):
            return {}
        return {"checkpoint_digest": digest(self.checkpoint.release.parameters)}

    def chosen(self, brief: Brief, store: Store) -> CheckpointRelease:
        return replace(self, threads=brief.settings.machine.threads)

    def inputs(self) -> Inputs:
        classes = tuple(self.given.trained.classes) if self.given else ()
        return Inputs(self.settings.trained_on, self.settings.seed, self.threads, classes)

    def options(self) -> list[AttackOption]:
        name = "Training images from weights alone"
        option = AttackOption("weights-alone", name, _ALONE, 0.0, None)
        if isinstance(self.checkpoint, NotApplicable):
            never = "" if self.checkpoint.ever else "; no further knowledge would change this"
            return [replace(option, why_not=f"{self.checkpoint.why}{never}")]
        records = min(len(self.given.trained) if self.given else 100, 1000)
        steps = self.settings.restarts * self.settings.steps
        forward = forward_operations(self.checkpoint.architecture)
        seconds = seconds_of(steps * 2 * records * 3 * forward)

        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            assert isinstance(self.checkpoint, Checkpoint)  # asked before
            return [_attack(self, self.checkpoint, folder.store(), progress)]

        return [replace(option, run=run, seconds=seconds, records=records, steps=steps)]

    def ladder(self) -> Ladder | None:
        if isinstance(self.checkpoint, NotApplicable) or self.given is None:
            return None

        def attack(
            victim: MarginVictim,
            trained: Records,
            others: Records,
            store: Store,
            progress: Progress,
        ) -> LineupRow:
            key = Key.from_seed(self.settings.seed).fold("control")
            known = Knowledge(architecture=recipe.architecture, centre=victim.centre)
            prepared = _strongest(self.settings, self.head).prepare(
                known, key=key, store=store, progress=progress
            )
            found = prepared.choice(victim.release).run(victim.release)
            return _lined_up(found, trained, others, key)[0]

        recipe = _like(self, self.checkpoint)
        key, count = Key.from_seed(self.settings.seed).fold("ladder"), len(self.given.trained)
        return checkpoint_ladder(recipe, self.given.decoys, count, key, attack)


def _attack(
    release: CheckpointRelease, checkpoint: Checkpoint, store: Store, progress: Progress
) -> Findings:
    settings, given = release.settings, release.given
    mlp = checkpoint.architecture
    head = release.head
    knowledge = Knowledge(architecture=mlp, centre=release.centre)
    key = Key.from_seed(settings.seed).fold("attack")
    prepared = _strongest(settings, head).prepare(
        knowledge, key=key, store=store, progress=progress
    )
    chosen = prepared.choice(checkpoint.release)
    spec = _HIDDEN if isinstance(chosen.config, HiddenSpan) else _FIRST
    found = chosen.run(checkpoint.release)
    facts: Facts = {"checkpoint": settings.file.name}
    if settings.base:
        facts["base"] = Path(settings.base).name
    facts |= {
        "architecture": str(mlp),
        "head": head,
        "read_as": " ".join(checkpoint.inferred),
        "records_by_the_spectrum": found.observed["records"],
    }
    centre = release.middle
    if given is None:
        words = _CONFIDENCE[spec.id]
        return unscored_findings(
            spec, knowledge.known(), found, centre, confidence=words, facts=facts
        )
    progress("scoring", 0, 1)
    scores = score_margin(secret_of(given.trained), found, given.decoys, centre)
    fit = release.fit
    lineup, ranks = _lined_up(found, given.trained, given.decoys, key.fold("line-up"))
    lineup, doubt = _doubted(release, lineup, fit)
    beside = {"rows": given.rows, "rank": ranks}
    if fit.margins is not None and head == "multiclass":
        weights = checkpoint.release.parameters[0]
        beside |= factors_of_one(mlp, weights, given.trained, centre)
    findings = margin_findings(
        spec,
        knowledge.known(),
        found,
        scores,
        given.decoys,
        margins=fit.margins,
        beside=beside,
        notes=(*given.notes, *fit.notes),
        facts=facts | fit.facts,
        lineup=lineup,
        doubt=doubt,
    )
    progress("scoring", 1, 1)
    return findings


def _lined_up(
    found: Reconstruction, trained: Records, others: Records, key: Key
) -> tuple[LineupRow, Tensor]:
    """One release, many members: every candidate answers it."""
    release = torch.zeros(len(trained), dtype=torch.long)
    places = places_for(trained, release, others, key.fold("places"))
    return line_up(places, [found.found().clamp(0, 1)], key)


def _like(release: CheckpointRelease, checkpoint: Checkpoint) -> MarginDescent:
    """The training of its controls."""
    network = checkpoint.architecture
    knowledge = Knowledge(architecture=network, centre=release.centre)
    prepared = _strongest(release.settings, release.head).prepare(
        knowledge, key=Key.from_seed(release.settings.seed), store=NullStore()
    )
    spans = isinstance(prepared.choice(checkpoint.release).config, HiddenSpan)
    return recipe_like(network, release.head, spans=spans)


def _doubted(release: CheckpointRelease, lineup: LineupRow, fit: Fit) -> tuple[LineupRow, str]:
    """Why silence says nothing: a premise that does not hold. The records may also differ by themselves."""
    given, key = release.given, Key.from_seed(release.settings.seed)
    assert given is not None  # it was scored
    none = torch.zeros(len(given.trained), dtype=torch.long)
    places = places_for(given.trained, none, given.decoys, key.fold("placebo places"))
    by_itself = placebo(places, key.fold("placebo"))
    if by_itself <= LEVEL:
        return replace(lineup, p=1.0), DIFFERENT.format(by_itself)
    if release.settings.base:
        return lineup, _TUNED
    return lineup, fit.doubt


def _strongest(settings: CheckpointSettings, head: Head) -> Strongest:
    steps, restarts = settings.steps, settings.restarts
    first = FirstLayer(head=head, restarts=restarts, descent=Descent(steps=steps))
    hidden = HiddenSpan(
        head=head, restarts=restarts, descent=replace(HiddenSpan.descent, steps=steps)
    )
    return Strongest(first, hidden)


def _head(given: str, outputs: int) -> Head:
    heads: dict[str, Head] = {
        "multiclass": "multiclass",
        "binary": "binary",
        "regression": "regression",
        "": "multiclass" if outputs > 1 else "binary",
    }
    check_head(heads[given], outputs)
    return heads[given]
