"""The closed-form reconstructor: one ridge regression per label from the change of the weights to the record.

Balle22 trains a network (RecoNN) to map released weights to the missing record. Given the record's
label and the direction of the change it made, that map is close to linear, so it can be fitted in
closed form in seconds, from a fifth of the shadow models, and every setting can be chosen by exact
leave-one-out error on the shadows. Where the fixed records leave room in the first fully connected
layer, its imprint (imprint.py) is tried as well, and the reading with the smaller error on the shadows
is used; there each shadow's label is the one inferred with it left out.

    delta_i = (theta_i - theta_base) / ||theta_i - theta_base||         i a shadow model
    z_hat   = mean_y + sum_{i: y_i = y} A_i (<delta, delta_i> + const)     y the inferred label

Memory: 8·s·p bytes for s shadows of p parameters, and 16·n² bytes for the n shadows of one label.
Cost: the shadow models; then s·p·n + n³ operations a label.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.informed.change import direction
from exhume.attacks.informed.imprint import ImprintReader, find_imprint, fit_imprint
from exhume.attacks.informed.label import LabelReader, read_labels
from exhume.attacks.informed.regression import Regression, regress
from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    Release,
    Status,
    Store,
    Weights,
    silent,
)

__all__ = ["ClosedForm", "FittedClosedForm"]

_SAMPLE = 50
_FEWEST = 2  # shadows a label needs for a regression of its own


@dataclass(frozen=True)
class ClosedForm:
    """Reconstruct the one unknown training record from released weights.

    Sees: `Weights`, r models, each trained on the fixed set and one unknown record.
    Assumes: the training recipe, the initial parameters, the fixed set, and records of the same
    distribution to train shadow models on.
    Guarantees: nothing about the truth is used; labels, penalties and kernel widths are chosen by
    leave-one-out error on the shadows. Deterministic given the shadows.
    Reference: Balle22 (setting); the closed form and the label reader are ours.
    """

    chunk: int = 64  # shadow models trained at once; fixes the bits, see train.fleet
    imprint: bool = True  # may it read the imprint instead, where that does better on the shadows?

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedClosedForm:
        trained = train_shadows(
            knowledge,
            "the closed form",
            fewest=_FEWEST,
            chunk=self.chunk,
            key=key,
            store=store,
            progress=progress,
        )
        started = time.perf_counter()
        shadows, base, shadow = trained.parameters, trained.base, trained.records
        progress("fitting the reconstructor", 0, len(shadow.classes))
        reader = read_labels(shadows, shadow.labels, base, trained.layout, len(shadow.classes))
        directions = direction(shadows, base)
        low, high = float(shadow.inputs.min()), float(shadow.inputs.max())
        regressions = {}
        for label in range(len(shadow.classes)):
            rows = (shadow.labels == label).nonzero()[:, 0]
            if len(rows) >= _FEWEST:
                records = shadow.inputs[rows].flatten(1).double()
                regressions[label] = regress(directions[rows], records, low=low, high=high)
            progress("fitting the reconstructor", label + 1, len(shadow.classes))
        if not regressions:
            raise NotApplicable("shadow: no label has two records", ever=True)
        imprint = _imprint(knowledge, trained, reader) if self.imprint else None
        if imprint is not None and imprint.held_out_error >= _error_as_inferred(
            regressions, directions, shadow, reader
        ):
            imprint = None
        seconds = trained.seconds + time.perf_counter() - started
        cost = Cost(seconds, models=len(shadow) + 1)
        return FittedClosedForm(
            base, reader, regressions, shadow.shape, cost, shadows[:_SAMPLE].clone(), imprint
        )


def _imprint(knowledge: Knowledge, trained: Shadows, reader: LabelReader) -> ImprintReader | None:
    """The other reading, where the network has one."""
    recipe, initial, fixed = knowledge.recipe, knowledge.initial, knowledge.fixed
    assert recipe is not None  # there are shadows, so these three are known
    assert initial is not None
    assert fixed is not None
    found = find_imprint(recipe.architecture, initial, trained.base, fixed)
    if found is None:
        return None
    return fit_imprint(
        found,
        trained.parameters[reader.rows],
        reader.held_out_scores(),
        trained.records[reader.rows],
        knowledge.public,
    )


def _error_as_inferred(
    regressions: dict[int, Regression], directions: Tensor, shadow: Records, reader: LabelReader
) -> float:
    """Mean squared error on the reader's shadows, each answered by the label inferred with it left out."""
    usable = torch.tensor(sorted(regressions), device=directions.device)
    inferred = usable[reader.held_out_scores()[:, usable].argmax(1)]
    labels, total = shadow.labels[reader.rows], 0.0
    for label, regression in regressions.items():
        truth = shadow.inputs[reader.rows].flatten(1).double()
        wrong = ((inferred == label) & (labels != label)).nonzero()[:, 0]
        found, _ = regression.apply(directions[reader.rows[wrong]])
        total += float((found - truth[wrong]).square().mean(1).sum())
        right = int(((inferred == label) & (labels == label)).sum())
        total += right * regression.held_out_error
    return total / len(labels)


@dataclass(frozen=True, eq=False)
class FittedClosedForm:
    """The reconstructor: good for every release of the same recipe, start and fixed set."""

    base: Tensor  # (p,) the model trained without the unknown record
    reader: LabelReader
    regressions: dict[int, Regression]
    shape: tuple[int, ...]
    cost: Cost
    sample: Tensor  # (at most 50, p) shadow models, to judge how well they are trained
    imprint: ImprintReader | None = None  # read instead of the regressions per label

    def run(self, releases: Release) -> Reconstruction:
        if not isinstance(releases, Weights):
            why = NotApplicable(
                "the closed form reads weights, not gradients or features", ever=False
            )
            return Reconstruction.none(0, self.shape, why)
        parameters = releases.parameters
        if parameters.shape[1] != self.base.shape[0]:
            raise ExhumeError(
                f"release: {parameters.shape[1]} parameters, the shadow models have {self.base.shape[0]}"
            )
        started = time.perf_counter()
        scores = self.reader.scores(parameters)
        usable = torch.tensor(sorted(self.regressions), device=scores.device)
        labels = usable[scores[:, usable].argmax(1)]
        records, expected = self._read(parameters, scores, labels)
        seconds = self.cost.seconds + time.perf_counter() - started
        return Reconstruction(
            candidates=records.reshape(-1, 1, *self.shape).to(parameters.dtype),
            confidence=-expected[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(seconds, self.cost.models),
            labels=labels[:, None],
            observed={
                "label_accuracy_on_shadows": self.reader.held_out_accuracy,
                "mse_on_shadows": self._held_out_error,
            },
        )

    @property
    def _held_out_error(self) -> float:
        if self.imprint is not None:
            return self.imprint.held_out_error
        return _weighted(self.regressions)

    def _read(self, parameters: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(m, p), (m, c), (m,) to records (m, q) and their expected squared errors (m,)."""
        if self.imprint is not None:
            return self.imprint.apply(parameters, scores)
        directions = direction(parameters, self.base)
        records = directions.new_zeros(len(parameters), math.prod(self.shape))
        expected = directions.new_zeros(len(parameters))
        for label, regression in self.regressions.items():
            rows = (labels == label).nonzero()[:, 0]
            records[rows], expected[rows] = regression.apply(directions[rows])
        return records, expected


def _weighted(regressions: dict[int, Regression]) -> float:
    sizes = {label: len(r.anchors) for label, r in regressions.items()}
    total = sum(r.held_out_error * sizes[label] for label, r in regressions.items())
    return total / sum(sizes.values())
