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
from exhume.report.folder import RunFolder
from exhume.results import AttackSpec, Facts, Findings, Section
from exhume.score.targets import score_targets
from exhume.score.verdict import not_audited
from exhume.settings import Brief, FittedSettings
from exhume.store import NullStore, digest
from exhume.train.glm import Optimum
from exhume.victims.checkpoint import secret_of
from exhume.victims.fitted import release_of_fitted

__all__ = ["LinearRelease", "read_linear"]

_LINEAR = AttackSpec(
    "linear", "The missing record of a linear model", "Balle22", "the fitted coefficients"
)
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
        return Inputs(self.source, self.seed, self.threads, tuple(self.records.classes))

    @property
    def deviations(self) -> tuple[str, ...]:
        return (
            "Every target is the unknown record of the same released model; what the adversary holds is "
            "taken to be the records that are no target.",
        )

    @property
    def targets(self) -> int:
        return min(self.settings.targets, len(self.records) // 2)

    def options(self) -> list[AttackOption]:
        work = 4.0 * self.records.inputs.numel() * len(self.records.classes)
        option = AttackOption(
            _LINEAR.id,
            _LINEAR.name,
            _THREAT,
            self.targets * work / 5e9,
            self._run,
            records=self.targets,
        )
        return [option if self.why is None else replace(option, run=None, why_not=self.why.why)]

    def _run(self, folder: RunFolder, progress: Progress) -> list[Findings]:
        assert self.release is not None  # else there is nothing to run
        assert self.recipe is not None
        key = Key.from_seed(self.seed)
        order = torch.randperm(len(self.records), generator=key.fold("targets").generator())
        chosen = order[: self.targets]
        others = self.records[_without(len(self.records), chosen)]
        found = self._found(chosen, key, progress)
        mean = MeanRecord().prepare(Knowledge(fixed=others), key=key, store=NullStore())
        many = Weights(self.release.parameters.expand(len(chosen), -1), self.release.layout)
        scores = score_targets(
            secret_of(self.records[chosen]),
            found,
            others,
            key.fold("score"),
            baselines={"mean record": mean.run(many)},
        )
        facts: Facts = {
            "model": str(self.recipe.architecture),
            "training": str(self.recipe),
            "records": float(len(self.records)),
        }
        knows = ("recipe", "fixed")
        if scores.leak is None:
            why = NotApplicable("every target has a copy among the other records", ever=True)
            section = Section.inapplicable(_LINEAR, why, knows)
            return [Findings(section, not_audited(why.why), facts=facts)]
        note = (
            "Exact only where fitting stopped at the optimum: lower `tol` to see what could leak; the "
            "certificate says how far each answer is from explaining the missing gradient."
        )
        section = targets_section(_LINEAR, knows, found, scores, notes=[note])
        return [Findings(section, scores.verdict, scores.evidence, facts)]

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
