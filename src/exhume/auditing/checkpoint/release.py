"""A file of weights, as it is: training records from the weights alone (Buzaglo23).

The attack sees the tensors, the activation and the released preprocessing. The training records are opened
afterwards, to score; without them there is a page of reconstructions and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from exhume.auditing.checkpoint.approach import Approach, approach_to
from exhume.auditing.checkpoint.fit import Fit
from exhume.auditing.checkpoint.ladder import checkpoint_ladder
from exhume.auditing.checkpoint.preprocessing import Preprocessing, preprocessing_given
from exhume.auditing.checkpoint.running import Subject, attack_checkpoint, control
from exhume.auditing.checkpoint.scoring_records import ScoringRecords, records_given, shape_of
from exhume.auditing.controls import Ladder
from exhume.auditing.estimate import search_seconds
from exhume.auditing.fine_tuned import against_of
from exhume.auditing.plan import AttackOption
from exhume.auditing.release import AuditedRelease, Inputs, Load
from exhume.core.contract import ExhumeError, Key, NotApplicable, Progress, Store
from exhume.core.evidence import Condition
from exhume.core.results import Findings
from exhume.models.heads import Head, check_head
from exhume.models.own import Convolved
from exhume.readers.checkpoint import Checkpoint, read_checkpoint
from exhume.report.folder import RunFolder
from exhume.settings import Brief, CheckpointSettings
from exhume.store.shards import digest

__all__ = ["CheckpointRelease", "read_checkpoint_release"]

_ALONE = "sees the weights; knows nothing else"
_SCORED = 8e-5  # seconds a number of the training records: line-ups, similarities, pictures


def read_checkpoint_release(brief: Brief, load: Load) -> CheckpointRelease | None:
    """Read everything that the settings name; nothing in the files is run."""
    settings = brief.checkpoint
    if settings is None:
        return None
    if not settings.file.exists():
        raise ExhumeError(f"checkpoint: there is no file {settings.file}")
    given = None
    if settings.trained_on:
        given = records_given(settings, Key.from_seed(settings.seed), load=load)
    shape = shape_of(settings, given)
    preprocessing = preprocessing_given(settings.mean, settings.std, shape)
    tuned = against_of(settings)
    try:
        checkpoint = read_checkpoint(
            settings.file,
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
        return CheckpointRelease(settings, why, preprocessing, given)
    outputs = checkpoint.architecture.outputs
    head = _head(settings.head, outputs)
    if given is not None:
        given = given.numbered(max(2, outputs))
        preprocessing = preprocessing.scaled_by(given.strangers.inputs)
    return CheckpointRelease(settings, checkpoint, preprocessing, given, head, approach)


@dataclass(frozen=True, eq=False)
class CheckpointRelease(AuditedRelease):
    settings: CheckpointSettings
    checkpoint: Checkpoint | NotApplicable  # as the attack takes it, or why it cannot
    preprocessing: Preprocessing
    given: ScoringRecords | None  # what the owner gave to score with
    head: Head = "multiclass"
    approach: Approach | None = None  # to a checkpoint that can be attacked
    threads: int = 0

    @property
    def title(self) -> str:
        return "the checkpoint"

    @cached_property
    def fit(self) -> Fit | None:
        """Of a checkpoint that can be attacked, to the records that the owner gave."""
        if self.given is None:
            return None
        assert self.approach is not None
        return self.approach.fit(self.given.trained, self.preprocessing, self.head)

    def conditions(self) -> tuple[Condition, ...]:
        if isinstance(self.checkpoint, NotApplicable):
            needs = "The network is one that the attack reads"
            return (Condition(needs, "it is not", holds=False, why=self.checkpoint.why),)
        assert self.approach is not None
        return self.approach.conditions(self.fit)

    @property
    def deviations(self) -> tuple[str, ...]:
        return () if self.approach is None else self.approach.deviations

    def digests(self) -> dict[str, str]:
        if isinstance(self.checkpoint, NotApplicable):
            return {}
        return {"checkpoint_digest": digest(self.checkpoint.release.parameters)}

    def chosen(self, brief: Brief, store: Store) -> CheckpointRelease:
        return replace(self, threads=brief.settings.machine.threads)

    def inputs(self) -> Inputs:
        source, seed = self.settings.trained_on, self.settings.seed
        if self.given is None:
            return Inputs(source, seed, self.threads)
        trained = self.given.trained
        uses = ((len(trained), "trained on"), (len(self.given.decoys), "to compare with"))
        return Inputs(source, seed, self.threads, tuple(trained.classes), uses, self.given.columns)

    def options(self) -> list[AttackOption]:
        name = f"Training {self.preprocessing.noun} from weights alone"
        option = AttackOption("weights-alone", name, _ALONE, 0.0, None)
        if isinstance(self.checkpoint, NotApplicable):
            never = "" if self.checkpoint.ever else "; no further knowledge would change this"
            return [replace(option, why_not=f"{self.checkpoint.why}{never}")]
        records = min(len(self.given.trained) if self.given else 100, 1000)
        steps = self.settings.restarts * self.settings.steps
        net = self.checkpoint.architecture
        seconds = search_seconds(net, steps * 2 * records)
        if self.given:
            seconds += _SCORED * records * prod(net.input_shape)

        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            return [attack_checkpoint(self._subject(), folder.store(), progress)]

        return [replace(option, run=run, seconds=seconds, records=records, steps=steps)]

    def _subject(self) -> Subject:
        assert isinstance(self.checkpoint, Checkpoint)  # asked before
        assert self.approach is not None
        return Subject(
            self.settings,
            self.checkpoint,
            self.preprocessing,
            self.head,
            self.given,
            self.fit,
            self.approach,
            self.conditions(),
        )

    def ladder(self) -> Ladder | None:
        recipe = None if self.approach is None else self.approach.easier(self.head)
        if recipe is None or self.given is None:
            return None
        key = Key.from_seed(self.settings.seed).fold("ladder")
        attack = control(self._subject(), recipe.architecture)
        return checkpoint_ladder(recipe, self.given, self.preprocessing, key, attack)


def _head(given: str, outputs: int) -> Head:
    heads: dict[str, Head] = {
        "multiclass": "multiclass",
        "binary": "binary",
        "regression": "regression",
        "": "multiclass" if outputs > 1 else "binary",
    }
    check_head(heads[given], outputs)
    return heads[given]
