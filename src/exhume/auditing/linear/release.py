"""A fitted linear model of scikit-learn's, as it is: each of its training records in turn is the unknown one.

At the optimum the gradients of all records cancel, so whoever has all but one knows that one's gradient, and
from it the record (Balle22). No model is trained for this: it is the owner's own release that is attacked.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.glm import GlmClosedForm
from exhume.auditing.findings import Findings, Named, inapplicable, status_of
from exhume.auditing.plan import Offer
from exhume.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Records,
    Weights,
)
from exhume.report.folder import RunFolder
from exhume.score.targets import score_targets
from exhume.store import NullStore, digest
from exhume.train.glm import Optimum
from exhume.victims.checkpoint import secret_of
from exhume.victims.fitted import release_of_fitted

__all__ = ["FittedAct", "FittedSettings"]

_LINEAR = Named(
    "linear", "The missing record of a linear model", "Balle22", "the fitted coefficients"
)
_THREAT = "sees the fitted model; knows its penalty and every record but one"


@dataclass(frozen=True)
class FittedSettings:
    file: str = ""  # .skops; a model in memory has none
    targets: int = 50  # training records that are the unknown one, each in its turn
    weights: str = (
        ""  # digest of the coefficients, written down so that a run is taken up by its own
    )

    def __post_init__(self) -> None:
        if self.targets < 2:
            raise ExhumeError(f"targets: {self.targets} given, at least 2 needed")


@dataclass(frozen=True, eq=False)
class FittedAct:
    settings: FittedSettings
    records: Records  # what the model was fitted on, as it sees them
    release: Weights | None
    recipe: Optimum | None
    why: NotApplicable | None
    seed: int

    @staticmethod
    def of(
        settings: FittedSettings, records: Records, seed: int, model: object | None = None
    ) -> FittedAct:
        """model: in memory; None: the file of the settings."""
        if records.vocabulary is not None:
            raise ExhumeError(
                "data: token sequences; a fitted linear model is attacked with what it was fitted on, numbers"
            )
        source = model if model is not None else Path(settings.file)
        inputs = records.inputs.flatten(1).double()
        records = Records(inputs, records.labels, records.classes)
        try:
            release, recipe = release_of_fitted(source, records.shape)
        except NotApplicable as why:
            return FittedAct(settings, records, None, None, why, seed)
        settings = replace(settings, weights=digest(release.parameters)[:16])
        return FittedAct(settings, records, release, recipe, None, seed)

    @property
    def title(self) -> str:
        return "the fitted model"

    @property
    def classes(self) -> list[str]:
        return list(self.records.classes)

    @property
    def deviations(self) -> tuple[str, ...]:
        return (
            "Every target is the unknown record of the same released model; what the adversary holds is "
            "taken to be the records that are no target.",
        )

    def offers(self) -> list[Offer]:
        offer = Offer(_LINEAR.id, _LINEAR.name, _THREAT, 0.0, self._run)
        if self.why is not None:
            return [replace(offer, run=None, why_not=self.why.why)]
        work = 4.0 * self.records.inputs.numel() * len(self.classes)
        return [replace(offer, seconds=self.settings.targets * work / 5e9)]

    def _run(self, folder: RunFolder, progress: Progress) -> list[Findings]:
        assert self.release is not None  # else there is nothing to run
        assert self.recipe is not None
        key = Key.from_seed(self.seed)
        order = torch.randperm(len(self.records), generator=key.fold("targets").generator())
        chosen = order[: min(self.settings.targets, len(order) // 2)]
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
        facts: dict[str, str | float] = {
            "model": str(self.recipe.architecture),
            "training": str(self.recipe),
            "records": float(len(self.records)),
        }
        knows = ("recipe", "fixed")
        if "success" not in scores.metrics:
            why = NotApplicable("every target has a copy among the other records", ever=True)
            return [inapplicable(_LINEAR, knows, facts, why)]
        measured = {name: errors.means() for name, errors in scores.baselines.items()}
        measured["nearest-neighbour oracle (knows the truth)"] = scores.oracle.means()
        section = {
            **asdict(_LINEAR),
            "knows": list(knows),
            "status": status_of(found),
            "metrics": {**scores.metrics, **found.observed},
            "baselines": [{"name": name, **values} for name, values in measured.items()],
            "cost": asdict(found.cost),
            "notes": [
                "Exact only where fitting stopped at the optimum: lower `tol` to see what could leak; the "
                "certificate says how far each answer is from explaining the missing gradient."
            ],
        }
        return [Findings(section, scores.evidence, facts, scores.verdict)]

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
