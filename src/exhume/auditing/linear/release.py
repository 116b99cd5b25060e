"""A fitted linear model of scikit-learn's, as it is: each of its training records in turn is the unknown one.

At the optimum the gradients of all records cancel, so whoever has all but one knows that one's gradient, and
from it the record (Balle22). No model is trained for this: it is the owner's own release that is attacked.

There is no line-up: strangers must be in nothing that enters an answer, and every other record does, other
targets included. Only a proof speaks, and silence never does: where the model is at its optimum the attack is
exact, and where it is not, the attack is not about this model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from scipy.stats import binom
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.glm import GlmClosedForm
from exhume.auditing.estimate import seconds_of
from exhume.auditing.plan import AttackOption
from exhume.auditing.release import AuditedRelease, Inputs, Load
from exhume.auditing.sections import targets_section
from exhume.core.contract import (
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
from exhume.core.results import NOT_JUDGED, AttackSpec, Facts, Findings
from exhume.models.glm import onehot, probabilities
from exhume.readers import Reading
from exhume.readers.fitted import release_of_fitted
from exhume.report.folder import RunFolder
from exhume.score.intervals import rate_of
from exhume.score.targets import score_targets
from exhume.score.verdict import not_audited
from exhume.settings import Brief, FittedSettings
from exhume.store.shards import NullStore, digest
from exhume.train.glm import Optimum, as_matrix, augmented
from exhume.victims import secret_of

__all__ = ["LinearRelease", "read_linear"]

_EXPLAINED = 1e-3  # relative: an answer's own gradient against the missing one
_BY_CHANCE = 0.01  # share of answers that come so near to it for no reason: ten times what was seen
_ONCE = 1e-4  # how often so many may do that
_AT_OPTIMUM = 0.1  # of a record's own gradient: what all records may leave over
_LINEAR = AttackSpec(
    "linear", "The missing record of a linear model", "Balle22", "the fitted coefficients"
)
_FEW, _MANY = 200, 1000  # records that are tried
_SECONDS = 60.0  # that they may take
_SCALES = [1.05**power for power in range(-30, 31)]  # of the logits, from .23 to 4.3
_NEARER = 0.1  # what a scale must leave of the mismatch to be named
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
            "Every target is the unknown record of the same released model; the adversary holds all "
            "the others.",
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
        notes = [
            "Exact only where fitting stopped at the optimum: lower `tol` to see what could leak; the "
            "certificate says how far each answer is from explaining the missing gradient."
        ]
        proved = _proved(-found.confidence[:, 0])
        doubt = "" if proved else self._premise(chosen)
        if proved:
            notes.append(
                f"{proved} of {len(chosen)} answers explain what the other records leave over of the "
                f"gradient, up to {_EXPLAINED:g} of it: with them the fit gives the release back."
            )
        section = replace(
            targets_section(_LINEAR, ("recipe", "fixed"), found, scores, notes=notes, doubt=doubt),
            leak=rate_of(proved, len(chosen)) if proved else None,
            proved=proved,
        )
        section.metrics["certified"] = float(proved)
        verdict = NOT_JUDGED if proved else not_audited(doubt)
        return [Findings(section, verdict, evidence=scores.evidence, facts=facts)]

    def _premise(self, chosen: Tensor) -> str:
        """Why silence says nothing about this model; the owner has all records, so that it can be seen."""
        assert self.release is not None
        assert self.recipe is not None
        penalty = self.recipe.penalty
        inputs = augmented(self.records.inputs, 1)
        wanted = onehot(self.records.labels, self.recipe.architecture.outputs)
        theta = as_matrix(self.recipe.architecture, self.release.parameters)[0]
        logits = (theta @ inputs.T)[None]  # (1, c, n)
        kappa = penalty.diagonal(len(self.records), inputs.shape[1] - 1)

        def left(scale: float) -> Tensor:
            """(c, d + 1) what the records leave over, were the released logits times so much."""
            return (probabilities(scale * logits)[0] - wanted) @ inputs

        error = (probabilities(logits)[0] - wanted)[:, chosen]
        own = float((error.norm(dim=0) * inputs[chosen].norm(dim=1)).median())
        data = left(1.0)
        ratio = float((data + kappa * theta).norm()) / max(own, 1e-300)
        if ratio <= _AT_OPTIMUM:
            return (
                "the model is at its optimum, but too few answers explain the missing gradient; silence of "
                "a linear model is no evidence"
            )
        said = (
            "the released coefficients are not at the optimum of this penalty with these records (together "
            f"their gradients leave {ratio:.2g} times a single record's own)"
        )
        slope = float((kappa * theta).square().sum())
        factor = -float((data * kappa * theta).sum()) / slope if slope else 1.0
        if factor > 0 and float((data + factor * kappa * theta).norm()) <= _AT_OPTIMUM * own:
            return (
                f"{said}: they are with a penalty {factor:.3g} times as strong, which is what a weight of "
                f"{1 / factor:.3g} for each record does"
            )
        fits = {s: float((left(s) + s * kappa * theta).norm()) for s in _SCALES}
        best = min(fits, key=fits.__getitem__)
        if fits[best] < _NEARER * ratio * own:
            return f"{said}: they nearly are with all logits times {best:.2g}"
        return f"{said}: lower `tol`, or see whether they are the records, columns and weights of the fit"

    def _model(self) -> str:
        classes, inputs = len(self.records.classes), self.records.inputs[0].numel()
        kind = "logistic" if classes == 2 else "softmax"
        return f"{kind} regression, {inputs:,} inputs, {classes:,} classes"

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


def _proved(mismatch: Tensor) -> int:
    """Answers (t,) that prove themselves: so many come near to the missing gradient that it is no chance."""
    count = int((mismatch <= _EXPLAINED).sum())
    return count if float(binom.sf(count - 1, len(mismatch), _BY_CHANCE)) <= _ONCE else 0


def _without(count: int, rows: Tensor) -> Tensor:
    kept = torch.ones(count, dtype=torch.bool)
    kept[rows] = False
    return kept
