"""The closed-form reconstructor: one ridge regression per label from the change of the weights to the record.

Balle22 trains a network (RecoNN) to map released weights to the missing record. Given the record's
label and the direction of the change it made, that map is close to linear, so it can be fitted in
closed form in seconds, from a fifth of the shadow models, and every setting can be chosen by exact
leave-one-out error on the shadows.

    delta_i = what is read off theta_i - theta_base, of unit size          i a shadow model
    z_hat   = mean_y + sum_{i: y_i = y} A_i (<delta, delta_i> + const)     y the inferred label

What is read (the whole change, or neuron by neuron) is chosen by that error too, see reading.py; what the
labels have in common is learned from all of them, see regression.py.

Memory: 16·s·p bytes for s shadows of p parameters, and 24·n² bytes for the n shadows of one label.
Cost: the shadow models; then s·p·n + n³ + 34·n²·q operations a label, for records of q values.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.baseline import holdings
from exhume.attacks.informed.label import LabelReader, read_labels
from exhume.attacks.informed.reading import READINGS, Reading
from exhume.attacks.informed.regression import Basis, Regression, Sample, basis_of, regress
from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    Layout,
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
_TRIAL = 300  # shadows a label gives to the choice of the reading
_FITTING = "fitting the reconstructor"


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
        shadow = trained.records
        reader = read_labels(
            trained.parameters, shadow.labels, trained.base, trained.layout, len(shadow.classes)
        )
        fitted = _fit(trained, holdings(knowledge), progress)
        seconds = trained.seconds + time.perf_counter() - started
        cost = Cost(seconds, models=len(shadow) + 1)
        sample = trained.parameters[:_SAMPLE].clone()
        return FittedClosedForm(
            trained.base, trained.layout, reader, fitted, shadow.shape, cost, sample
        )


def _fit(trained: Shadows, held: Records, progress: Progress) -> _Fitted:
    """Every label's regression, by the reading with the smallest leave-one-out error."""
    shadow, classes = trained.records, len(trained.records.classes)
    rows = {label: (shadow.labels == label).nonzero()[:, 0] for label in range(classes)}
    rows = {label: own for label, own in rows.items() if len(own) >= _FEWEST}
    if not rows:
        raise NotApplicable("shadow: no label has two records", ever=True)
    basis = basis_of(held)
    trial = {label: own[:_TRIAL] for label, own in rows.items()}
    tried = []
    for step, reading in enumerate(READINGS):
        progress(_FITTING, step, len(READINGS) + 1)
        tried.append(_fit_reading(reading, trained, trial, basis))
    best = min(tried, key=lambda fitted: fitted.error)
    if any(len(own) > _TRIAL for own in rows.values()):
        progress(_FITTING, len(READINGS), len(READINGS) + 1)
        best = _fit_reading(best.reading, trained, rows, basis)
    progress(_FITTING, len(READINGS) + 1, len(READINGS) + 1)
    return best


def _fit_reading(
    reading: Reading, trained: Shadows, rows: dict[int, Tensor], basis: Basis
) -> _Fitted:
    """rows: which shadows each label's regression is fitted on."""
    records = trained.records.inputs
    samples = {
        label: Sample(
            reading.apply(trained.parameters[own], trained.base, trained.layout),
            records[own].flatten(1).double(),
        )
        for label, own in rows.items()
    }
    regressions, error = regress(samples, basis)
    return _Fitted(reading, regressions, error)


@dataclass(frozen=True, eq=False)
class _Fitted:
    reading: Reading
    regressions: dict[int, Regression]
    error: float  # mean squared leave-one-out error over the shadows


@dataclass(frozen=True, eq=False)
class FittedClosedForm:
    """The reconstructor: good for every release of the same recipe, start and fixed set."""

    base: Tensor  # (p,) the model trained without the unknown record
    layout: Layout
    reader: LabelReader
    fitted: _Fitted
    shape: tuple[int, ...]
    cost: Cost
    sample: Tensor  # (at most 50, p) shadow models, to judge how well they are trained

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
        regressions = self.fitted.regressions
        usable = torch.tensor(sorted(regressions), device=scores.device)
        labels = usable[scores[:, usable].argmax(1)]
        read = self.fitted.reading.apply(parameters, self.base, self.layout)
        records = read.new_zeros(len(parameters), *self.shape)
        expected = read.new_zeros(len(parameters))
        for label, regression in regressions.items():
            rows = (labels == label).nonzero()[:, 0]
            found, expected[rows] = regression.apply(read[rows])
            records[rows] = found.reshape(-1, *self.shape)
        seconds = self.cost.seconds + time.perf_counter() - started
        return Reconstruction(
            candidates=records[:, None].to(parameters.dtype),
            confidence=-expected[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(seconds, self.cost.models),
            labels=labels[:, None],
            observed={
                "label_accuracy_on_shadows": self.reader.held_out_accuracy,
                "mse_on_shadows": self.fitted.error,
            },
        )
