"""A fitted linear model of scikit-learn's, as it is: each of its training records in turn is the unknown one.

At the optimum the gradients of all records cancel, so whoever has all but one knows that one's gradient, and
from it the record (Balle22). No model is trained for this: it is the owner's own release that is attacked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.glm import GlmClosedForm
from exhume.auditing.controls import RUNG_TARGETS, Ladder, Rung
from exhume.auditing.estimate import seconds_of
from exhume.auditing.plan import AttackOption
from exhume.auditing.release import AuditedRelease, Inputs, Load
from exhume.auditing.sections import targets_section
from exhume.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Records,
    Store,
    Weights,
)
from exhume.data import Reading
from exhume.evidence import LineupRow
from exhume.report.folder import RunFolder
from exhume.results import AttackSpec, Facts, Findings
from exhume.score.places import line_up, places_for
from exhume.score.targets import score_targets
from exhume.settings import Brief, FittedSettings
from exhume.store import NullStore, digest
from exhume.train.glm import Optimum
from exhume.victims.checkpoint import secret_of
from exhume.victims.fitted import release_of_fitted

__all__ = ["LinearRelease", "read_linear"]

_LINEAR = AttackSpec(
    "linear", "The missing record of a linear model", "Balle22", "the fitted coefficients"
)
_FEW, _MANY = 200, 1000  # records that are tried
_SECONDS = 60.0  # that they may take
_THREAT = "sees the fitted model; knows its penalty and every record but one"


def read_linear(brief: Brief, load: Load) -> LinearRelease | None:
    if brief.fitted is None:
        return None
    source = brief.settings.data.source
    return LinearRelease.of(brief.fitted, load(source, Reading()), brief.settings.seed, source)


@dataclass(frozen=True, eq=False)
class LinearRelease(AuditedRelease):
    settings: FittedSettings
    records: Records  # what the model was fitted on, as it sees them
    release: Weights | None
    recipe: Optimum | None
    why: NotApplicable | None
    seed: int
    source: str = ""
    threads: int = 0

    @staticmethod
    def of(
        settings: FittedSettings,
        records: Records,
        seed: int,
        source: str = "",
        model: object | None = None,
    ) -> LinearRelease:
        """model: in memory; None: the file of the settings."""
        if records.vocabulary is not None:
            raise ExhumeError(
                "data: token sequences; a fitted linear model is attacked with what it was fitted on, numbers"
            )
        released = model if model is not None else Path(settings.file)
        inputs = records.inputs.flatten(1).double()
        records = Records(inputs, records.labels, records.classes)
        try:
            release, recipe = release_of_fitted(released, records.shape)
        except NotApplicable as why:
            return LinearRelease(settings, records, None, None, why, seed, source)
        return LinearRelease(settings, records, release, recipe, None, seed, source)

    @property
    def title(self) -> str:
        return "the fitted model"

    def digests(self) -> dict[str, str]:
        """Of the coefficients: a model in memory has no file."""
        return {"fitted": digest(self.release.parameters)[:16]} if self.release else {}

    def chosen(self, brief: Brief, store: Store) -> LinearRelease:
        return replace(self, threads=brief.settings.machine.threads)

    def inputs(self) -> Inputs:
        records = self.records
        uses = ((len(records), "the model was fitted on"),)
        return Inputs(
            self.source, self.seed, self.threads, tuple(records.classes), uses, records.columns
        )

    @property
    def deviations(self) -> tuple[str, ...]:
        return (
            "Every target is the unknown record of the same released model; the adversary holds all the "
            "others, which are also its strangers.",
        )

    @property
    def targets(self) -> int:
        affordable = max(_FEW, min(_MANY, int(_SECONDS / self._each)))
        return min(self.settings.targets or affordable, len(self.records))

    @property
    def _each(self) -> float:
        """Seconds of one target."""
        work = 4.0 * self.records.inputs.numel() * len(self.records.classes)
        return max(1e-6, seconds_of(3 * work))

    def options(self) -> list[AttackOption]:
        seconds = self.targets * self._each
        option = AttackOption(
            _LINEAR.id, _LINEAR.name, _THREAT, seconds, self._run, records=self.targets
        )
        return [option if self.why is None else replace(option, run=None, why_not=self.why.why)]

    def ladder(self) -> Ladder | None:
        """The same model, fitted until nothing is left to gain."""
        if self.why is not None:
            return None

        words = "with the same penalty, fitted to its optimum"
        seconds = RUNG_TARGETS * self._each + 5.0
        rung = Rung("at its optimum", words, seconds, lambda _, __, tell: self._at_optimum(tell))
        return Ladder("how the model was fitted", "as it is", "in the model as it is", (rung,))

    def _at_optimum(self, progress: Progress) -> dict[str, LineupRow]:
        assert self.recipe is not None  # it was read
        key, none = Key.from_seed(self.seed), self.records.none_for(1)
        fitted = self.recipe.fit(torch.zeros(0), self.records, none, key)
        easier = replace(self, release=Weights(fitted, self.recipe.architecture.layout))
        rows = self._chosen(RUNG_TARGETS)
        found = easier._found(rows, key, progress)
        return {_LINEAR.id: self._lined_up(found, rows, key.fold("control"))[0]}

    def _chosen(self, count: int) -> Tensor:
        key = Key.from_seed(self.seed).fold("targets")
        return torch.randperm(len(self.records), generator=key.generator())[:count]

    def _run(self, folder: RunFolder, progress: Progress) -> list[Findings]:
        assert self.release is not None  # else there is nothing to run
        assert self.recipe is not None
        key, chosen = Key.from_seed(self.seed), self._chosen(self.targets)
        found = self._found(chosen, key, progress)
        mean = MeanRecord().prepare(Knowledge(fixed=self.records), key=key, store=NullStore())
        many = Weights(self.release.parameters.expand(len(chosen), -1), self.release.layout)
        scores = score_targets(
            secret_of(self.records[chosen]),
            found,
            self.records,
            key.fold("score"),
            baselines={"mean record": mean.run(many)},
            own=chosen,
        )
        facts: Facts = {
            "model": self._model(),
            "training": str(self.recipe),
            "records": float(len(self.records)),
        }
        note = (
            "Exact only where fitting stopped at the optimum: lower `tol` to see what could leak; the "
            "certificate says how far each answer is from explaining the missing gradient."
        )
        lineup, ranks = self._lined_up(found, chosen, key.fold("line-up"))
        section = targets_section(
            _LINEAR, ("recipe", "fixed"), found, scores, notes=[note], lineup=lineup
        )
        return [Findings(section, evidence=scores.evidence | {"rank": ranks}, facts=facts)]

    def _model(self) -> str:
        classes, inputs = len(self.records.classes), self.records.inputs[0].numel()
        kind = "logistic" if classes == 2 else "softmax"
        return f"{kind} regression, {inputs:,} inputs, {classes:,} classes"

    def _lined_up(
        self, found: Reconstruction, chosen: Tensor, key: Key
    ) -> tuple[LineupRow, Tensor]:
        """Among other training records: the adversary holds these, so that they look rather more alike."""
        own, others = self.records[chosen], self.records[_without(len(self.records), chosen)]
        places = places_for(own, torch.arange(len(own)), others, key)
        return line_up(places, [found.found(release) for release in range(len(own))], key)

    def _found(self, chosen: Tensor, key: Key, progress: Progress) -> Reconstruction:
        assert self.release is not None
        assert self.recipe is not None
        started = time.perf_counter()
        answers = []
        for place, row in enumerate(chosen):
            progress("solving for the missing record", place, len(chosen))
            fixed = self.records[_without(len(self.records), row[None])]
            knowledge = Knowledge(
                architecture=self.recipe.architecture, recipe=self.recipe, fixed=fixed
            )
            prepared = GlmClosedForm().prepare(knowledge, key=key, store=NullStore())
            answers.append(prepared.run(self.release))
        progress("solving for the missing record", len(chosen), len(chosen))
        mismatch = torch.cat([one.confidence for one in answers])
        return Reconstruction(
            torch.cat([one.candidates for one in answers]),
            mismatch,
            answers[0].status,
            Cost(time.perf_counter() - started),
            torch.cat([one.labels for one in answers if one.labels is not None]),
            {"certificate_median": float((-mismatch).median())},
        )


def _without(count: int, rows: Tensor) -> Tensor:
    kept = torch.ones(count, dtype=torch.bool)
    kept[rows] = False
    return kept
