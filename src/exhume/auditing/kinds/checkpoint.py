"""A file of weights, as it is: training records from the weights alone (Buzaglo23).

The attack sees the tensors, the activation and the released preprocessing. The training records are opened
afterwards, to score; without them there is a page of reconstructions and no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from exhume.auditing.at_risk import factors_of_one
from exhume.auditing.case import (
    MOST_COUNTED,
    Answer,
    Case,
    Inputs,
    Kind,
    Ladder,
    Load,
    Question,
    Row,
    Rung,
    Scored,
    Seats,
    relevant,
)
from exhume.auditing.kinds.checkpoint_approach import Approach, approach_to
from exhume.auditing.kinds.checkpoint_conditions import FAR, Fit, doubt_of
from exhume.auditing.kinds.checkpoint_findings import scored_images, scored_vectors, unscored
from exhume.auditing.kinds.checkpoint_records import (
    Preprocessing,
    ScoringRecords,
    preprocessing_given,
    records_given,
    shape_of,
)
from exhume.auditing.kinds.update_files import against_of
from exhume.auditing.look import (
    FEWEST,
    STORED,
    look_at,
    looked,
    score_look,
    seats_of,
    seconds_of_looks,
)
from exhume.auditing.plan import search_seconds
from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    Layout,
    NotApplicable,
    Progress,
    Reconstruction,
    Records,
    Store,
    Weights,
)
from exhume.core.evidence import Condition, Premise
from exhume.core.results import AttackSpec, Facts
from exhume.models.heads import Head, check_head
from exhume.models.own import Convolved
from exhume.readers.adapters import BaseReference, read_against
from exhume.readers.checkpoint import Checkpoint, read_checkpoint
from exhume.readers.fitted import network_of_mlp, read_skops
from exhume.readers.tensors import read_tensors
from exhume.report.folder import RunFolder
from exhume.score.lineup import Alike
from exhume.score.margin import alike_vectors, score_margin, score_vectors
from exhume.score.places import Places, places_for
from exhume.settings import Brief, CheckpointSettings
from exhume.store.shards import digest
from exhume.train.fleet import stacked_seconds
from exhume.train.margin import MarginDescent
from exhume.train.recipe import FullBatch
from exhume.victims import secret_of
from exhume.victims.margin import release_margin, trained_in_full

_ALONE = "sees the weights; knows nothing else"
_SCORED = 8e-5  # seconds a number of the training records: line-ups, similarities, pictures
_TUNED = (
    "the attack explains all weights by training records, and those of a fine-tuned network are mostly its "
    "base's; audit an adapter or difference of few steps as [update], the way of fine-tuning as [victim] "
    "with start"
)
_SHOWN = 200  # records whose likest window is shown
_COUNTS = (16, 64, 256)  # training records, on the ladder


def read_released_checkpoint(brief: Brief, load: Load) -> CheckpointCase | None:
    """Read everything that the settings name; nothing in the files is run."""
    settings = brief.checkpoint
    if settings is None:
        return None
    if not settings.file.exists():
        raise ExhumeError(f"checkpoint: there is no file {settings.file}")
    if settings.file.suffix == ".skops":
        return _of_scikit_learn(settings, load)
    return checkpoint_case(settings, settings.file, load)


def _of_scikit_learn(settings: CheckpointSettings, load: Load) -> CheckpointCase:
    """A fitted MLPClassifier, which says its activation itself."""
    model = read_skops(settings.file)
    if not isinstance(model, MLPClassifier):
        raise ExhumeError(
            f"checkpoint: {settings.file} holds a {type(model).__name__}, not an MLPClassifier; a linear "
            'model goes as file = "…" in [fitted]'
        )
    state = {n: tensor.detach() for n, tensor in network_of_mlp(model).state_dict().items()}
    return checkpoint_case(replace(settings, activation=model.activation), state, load)


def checkpoint_case(
    settings: CheckpointSettings, source: Path | Mapping[str, Tensor], load: Load
) -> CheckpointCase:
    """source: the file of weights, or a state dict in memory."""
    given = None
    if settings.trained_on:
        given = records_given(settings, Key.from_seed(settings.seed), load=load)
    shape = shape_of(settings, given)
    preprocessing = preprocessing_given(settings.mean, settings.std, shape)
    tuned = against_of(settings)
    tensors = _tensors_in(source, settings, tuned[1] if tuned else None)
    try:
        checkpoint = read_checkpoint(
            source,
            activation=settings.activation,
            shape=shape,
            part=settings.part,
            trust=settings.trust,
            against=tuned[1] if tuned else None,
            model=settings.model or "",
        )
        if isinstance(checkpoint.architecture, Convolved):
            preprocessing, shift, scale = preprocessing.in_the_network()
            network = replace(checkpoint.architecture, shift=shift, scale=scale)
            checkpoint = replace(checkpoint, architecture=network)
        approach = approach_to(checkpoint)
    except NotApplicable as why:
        return CheckpointCase(settings, why, preprocessing, given, tensors)
    outputs = checkpoint.architecture.outputs
    head = _head(settings.head, outputs)
    if given is not None:
        given = given.numbered(max(2, outputs))
        preprocessing = preprocessing.scaled_by(given.strangers.inputs)
    subject = AttackedCheckpoint(checkpoint, approach, head, preprocessing.centre)
    return CheckpointCase(settings, subject, preprocessing, given, tensors)


def _tensors_in(
    source: Path | Mapping[str, Tensor], settings: CheckpointSettings, against: BaseReference | None
) -> dict[str, Tensor]:
    """All that is released, whatever of it an attack reads."""
    if not isinstance(source, Path):
        return dict(source)
    if against is None:
        return read_tensors(source, trust=settings.trust)[0]
    return dict(read_against(source, against, trust=settings.trust).after)


@dataclass(frozen=True, eq=False)
class AttackedCheckpoint:
    """A checkpoint that can be attacked, or a network that was trained here."""

    checkpoint: Checkpoint
    approach: Approach
    head: Head
    centre: Tensor | None  # (*shape) what its records lost before they entered


@dataclass(frozen=True, eq=False)
class CheckpointCase(Case):
    kind_name = "checkpoint"

    settings: CheckpointSettings
    released: AttackedCheckpoint | NotApplicable  # as the attack takes it, or why it cannot
    preprocessing: Preprocessing
    given: ScoringRecords | None  # what the owner gave to score with
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # all that is in the file
    threads: int = 0
    control: bool = False  # it was trained here

    # Read and plan

    @property
    def title(self) -> str:
        return "the checkpoint"

    @property
    def subject(self) -> AttackedCheckpoint:
        if isinstance(self.released, NotApplicable):
            raise self.released
        return self.released

    @property
    def refused(self) -> bool:
        return isinstance(self.released, NotApplicable)

    @cached_property
    def fit(self) -> Fit | None:
        """How a checkpoint that can be attacked does on the records that the owner gave."""
        if self.given is None:
            return None
        subject = self.subject
        return subject.approach.fit(self.given.trained, self.preprocessing, subject.head)

    def premise(self) -> Premise | None:
        if self.control or self.refused or self.fit is None or self.fit.residual is None:
            return None
        left = self.fit.residual
        sentence = f"The training records explain {1 - left:.0%} of the layer that is read."
        what = "share of the layer that the training records leave unexplained"
        return Premise(what, left, FAR, left <= FAR, None, sentence, doubt_of(self.conditions()))

    def conditions(self) -> tuple[Condition, ...]:
        if isinstance(self.released, NotApplicable):
            needs = "The network is one that the attack reads"
            return (Condition(needs, "it is not", holds=False, why=self.released.why),)
        return self.released.approach.conditions(self.fit)

    @property
    def deviations(self) -> tuple[str, ...]:
        return () if self.refused else self.subject.approach.deviations

    def digests(self) -> dict[str, str]:
        if self.refused:
            return {}
        return {"checkpoint_digest": digest(self.subject.checkpoint.release.parameters)}

    def resolved(self, brief: Brief, store: Store) -> CheckpointCase:
        return replace(self, threads=brief.settings.machine.threads)

    def inputs(self) -> Inputs:
        source, seed = self.settings.trained_on, self.settings.seed
        if self.given is None:
            return Inputs(source, seed, self.threads)
        trained = self.given.trained
        uses = ((len(trained), "trained on"), (len(self.given.decoys), "to compare with"))
        return Inputs(source, seed, self.threads, tuple(trained.classes), uses, self.given.columns)

    def rows(self) -> list[Row]:
        if isinstance(self.released, NotApplicable):
            never = "" if self.released.ever else "; no further knowledge would change this"
            name = f"Training {self.preprocessing.noun} from weights alone"
            spec = AttackSpec("weights-alone", name, "Buzaglo23", "the released weights")
            return [Row(spec, None, _ALONE, why_not=f"{self.released.why}{never}"), *self._look()]
        subject = self.subject
        records = min(len(self.given.trained) if self.given else 100, 1000)
        steps = self.settings.restarts * self.settings.steps
        net = subject.checkpoint.architecture
        seconds = search_seconds(net, steps * 2 * records)
        if self.given:
            seconds += _SCORED * records * math.prod(net.input_shape)
        spec = subject.approach.spec(self.preprocessing.noun)
        attack = subject.approach.mounted(self.settings, subject.head, self.preprocessing.size)
        return [Row(spec, attack, _ALONE, seconds, records, steps=steps), *self._look()]

    def _look(self) -> list[Row]:
        """At everything in the file, by an owner who knows what it was trained on."""
        if self.given is None or self.control or math.prod(self.preprocessing.shape) < FEWEST:
            return []
        trained = self.given.trained
        shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        pool = len(trained) + len(self.given.strangers)
        seconds = seconds_of_looks(shapes, math.prod(trained.shape), 1, pool)
        return [Row(STORED, None, _ALONE, seconds, len(trained), look=_look)]

    # Attack

    def questions(self, row: Row) -> list[Question]:
        subject, key = self.subject, Key.from_seed(self.settings.seed)
        known = Knowledge(architecture=subject.approach.architecture, centre=subject.centre)
        stream = "control" if self.control else "attack"
        return [Question(subject.checkpoint.release, known, key.fold(stream))]

    def as_records(self, row: Row, question: Question, found: Reconstruction) -> Reconstruction:
        return replace(found, candidates=self.preprocessing.records(found.candidates))

    # Judge

    def seats(self, row: Row, answers: Sequence[Answer]) -> Seats | None:
        """One release, many members: every candidate answers it."""
        if self.given is None:
            return None
        key = answers[0].question.key
        key = key if self.control else key.fold("line-up")
        if row.look is not None:
            seats = seats_of(answers, self.places_of(key.fold("places")), key)
            return replace(seats, placebo=self._placebo())
        alike = None if self.preprocessing.images else alike_vectors
        return Seats(
            self.places_of(key.fold("places")),
            [answers[0].found.found()],
            key,
            alike,
            placebo=None if self.control else self._placebo(),
            confidence=[answers[0].found.sure()],
            groups=self.given.trained.class_names(),
        )

    def _placebo(self) -> tuple[Places, Key, Alike | None]:
        own = Key.from_seed(self.settings.seed)
        alike = None if self.preprocessing.images else alike_vectors
        return self.places_of(own.fold("placebo places")), own.fold("placebo"), alike

    def places_of(self, key: Key) -> Places:
        assert self.given is not None  # asked before
        release = torch.zeros(len(self.given.trained), dtype=torch.long)
        return places_for(self.given.trained, release, self.given.strangers, key)

    def score(self, row: Row, answers: Sequence[Answer], ranks: Tensor | None) -> Scored:
        if row.look is not None:
            assert self.given is not None  # or nobody would have looked
            return score_look(self.given.trained[:_SHOWN], answers, ranks)
        found, subject = answers[0].found, self.subject
        if self.given is None:
            confidence = subject.approach.confidence
            return unscored(found, self.preprocessing.middle, confidence=confidence)
        fit, given = self.fit, self.given
        assert fit is not None  # there are records
        beside = {"rows": given.rows} | ({} if ranks is None else {"rank": ranks})
        if fit.margins is not None and subject.head == "multiclass":
            trained = given.trained
            inputs = self.preprocessing.entering(trained.inputs)
            entering = Records(inputs, trained.labels, trained.classes)
            weights = subject.checkpoint.release.parameters[0]
            network = subject.approach.architecture
            beside |= factors_of_one(network, weights, entering, torch.zeros(()))
        secret = secret_of(given.trained)
        if self.preprocessing.images:
            images = score_margin(secret, found, given.decoys, self.preprocessing.middle)
            shown = scored_images(found, images, given.decoys, margins=fit.margins, beside=beside)
        else:
            vectors = score_vectors(secret, found, given.decoys)
            shown = scored_vectors(found, vectors, given, margins=fit.margins, beside=beside)
        return replace(shown, notes=(*given.notes, *fit.notes), facts=fit.facts)

    def facts(self) -> Facts:
        facts: Facts = {"checkpoint": self.settings.file.name}
        if self.settings.base:
            facts["base"] = Path(self.settings.base).name
        if self.refused:
            return facts
        subject = self.subject
        return facts | {
            "architecture": str(subject.checkpoint.architecture),
            "head": subject.head,
            "read_as": " ".join(subject.checkpoint.inferred),
            "records_by_the_spectrum": float(subject.approach.records),
        }

    def doubt(self, row: Row, answers: Sequence[Answer], metrics: Mapping[str, float]) -> str:
        """Why silence says nothing: a premise that does not hold."""
        if self.given is None or self.control:
            return ""
        return _TUNED if self.settings.base else doubt_of(self.conditions())

    def refusal(self, why: str) -> str:
        """A condition that fails says better than the attack why it does not apply."""
        return doubt_of(self.conditions()) or why

    # Controls

    def ladders(self) -> list[Ladder]:
        """This network, trained here on fewer records in the way that the attack can read."""
        if self.refused or self.given is None:
            return []
        recipe, given = self.subject.approach.easier(self.subject.head), self.given
        if recipe is None:
            return []
        records, most = len(given.trained), len(given.strangers) // 4
        counts = sorted({*_COUNTS, -(-records // MOST_COUNTED)})
        rungs = [
            self._rung(recipe, count, records)
            for count in counts
            if count < records and count <= most
        ]
        own = f"{records:,}, as it is"
        respect = f"training records, {_how(recipe)}"
        return [Ladder(respect, own, "in the checkpoint as it is", tuple(rungs))]

    def _rung(self, recipe: MarginDescent | FullBatch, count: int, records: int) -> Rung:
        """records: that the checkpoint was trained on; of fewer each counts for more."""
        epochs = recipe.epochs if isinstance(recipe, MarginDescent) else recipe.descent.steps
        seconds = stacked_seconds(recipe.architecture, epochs * count)
        words = f"trained here on {count} of the decoys {_how(recipe)}"
        counts = -(-records // count)

        def easier(folder: RunFolder, progress: Progress) -> CheckpointCase:
            return self._trained_here(recipe, count, folder.store(), progress)

        earns = relevant(counts, records)
        return Rung(str(count), words, seconds, easier, counts, earns)

    def _trained_here(
        self, recipe: MarginDescent | FullBatch, count: int, store: Store, progress: Progress
    ) -> CheckpointCase:
        """On some of the decoys, whose classes are mixed like those of what was trained on."""
        assert self.given is not None  # or there were no ladder
        key = Key.from_seed(self.settings.seed).fold("ladder").fold(count)
        chosen = mixed_alike(self.given.trained, self.given.strangers, count, key)
        rest = torch.ones(len(self.given.strangers), dtype=torch.bool)
        rest[chosen] = False
        trained, others = self.given.strangers[chosen], self.given.strangers[rest]
        preprocessing = self.preprocessing.for_control()
        inputs = preprocessing.entering(trained.inputs)
        entering = Records(inputs, trained.labels, trained.classes)
        release, centre = _released(recipe, entering, key=key, store=store, progress=progress)
        checkpoint = replace(self.subject.checkpoint, release=release)
        approach = self.subject.approach.of_control(recipe.architecture)
        subject = replace(self.subject, checkpoint=checkpoint, approach=approach, centre=centre)
        given = replace(self.given, trained=trained, decoys=others, strangers=others)
        return replace(
            self, released=subject, preprocessing=preprocessing, given=given, control=True
        )


def _look(case: CheckpointCase, progress: Progress) -> list[Answer]:
    """Every tensor in the file, for every record that it was trained on."""
    given, key = case.given, Key.from_seed(case.settings.seed).fold("stored")
    assert given is not None  # or nobody would look
    progress("looking at what is stored", 0, 1)
    places = case.places_of(key.fold("line-up").fold("places"))
    seen = look_at(case.tensors, places, range(min(_SHOWN, len(given.trained))))
    progress("looking at what is stored", 1, 1)
    nothing = Weights(
        torch.zeros(1, 0), Layout((), ())
    )  # no attack is asked: the file was looked at
    return [looked(seen, Question(nothing, Knowledge(), key))]


CHECKPOINT = Kind(CheckpointCase, "What the checkpoint gives away", read_released_checkpoint)


def _head(given: str, outputs: int) -> Head:
    heads: dict[str, Head] = {
        "multiclass": "multiclass",
        "binary": "binary",
        "regression": "regression",
        "": "multiclass" if outputs > 1 else "binary",
    }
    check_head(heads[given], outputs)
    return heads[given]


def _how(recipe: MarginDescent | FullBatch) -> str:
    small = isinstance(recipe, MarginDescent) and not recipe.weight_decay
    return "from a small start" if small else "with weight decay"


def _released(
    recipe: MarginDescent | FullBatch,
    records: Records,
    *,
    key: Key,
    store: Store,
    progress: Progress,
) -> tuple[Weights, Tensor]:
    """The weights, and what the records lost before they entered."""
    if isinstance(recipe, MarginDescent):
        victim = release_margin(recipe, records, key=key, store=store, progress=progress)
        return victim.release, victim.centre
    centre = records.inputs.mean(0)
    centred = Records(records.inputs - centre, records.labels, records.classes)
    return trained_in_full(recipe, centred, key=key, store=store, progress=progress), centre


def mixed_alike(own: Records, others: Records, count: int, key: Key) -> Tensor:
    """Rows of so many others, with the classes in the shares that one's own have, as far as they go."""
    generator = key.generator()
    drawn = own.labels[torch.randperm(len(own), generator=generator)[:count]]
    wanted = Counter(own.classes[label] for label in drawn.tolist())
    order = torch.randperm(len(others), generator=generator).tolist()
    chosen = list[int]()
    for row in order:
        name = others.classes[int(others.labels[row])]
        if wanted[name] > 0:
            wanted[name] -= 1
            chosen.append(row)
    taken = set(chosen)
    spare = [row for row in order if row not in taken]
    return torch.tensor((chosen + spare)[:count])
