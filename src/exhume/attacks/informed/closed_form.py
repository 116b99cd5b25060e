"""The closed-form reconstructor: one ridge regression per label from the change of the weights to the record.

Balle22 trains a network (RecoNN) to map released weights to the missing record. Given the record's
label and the direction of the change it made, that map is close to linear, so it can be fitted in
closed form in seconds, from a fifth of the shadow models, and every setting can be chosen by exact
leave-one-out error on the shadows. Where the fixed records leave room in the first fully connected
layer, its imprint (imprint.py) is tried as well, and whichever has the smaller such error is used.

    delta_i = what is read off theta_i - theta_base, of unit size          i a shadow model
    z_hat   = mean_y + sum_{i: y_i = y} A_i (<delta, delta_i> + const)     y the inferred label

What is read (the whole change, or neuron by neuron) is chosen by that error too, see reading.py; what the
labels have in common is learned from all of them, see regression.py.

Memory: `memory.closed_form_bytes`. s shadows of p parameters and what is read off them are held whole where
they are few; otherwise they lie in a file and are read in blocks, and 8·s²/c bytes of kernels are the most.
Cost: the shadow models; then s·p·n + n³ + 34·n²·q operations a label, for records of q values.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.baseline import holdings
from exhume.attacks.informed.imprint import MOST_READ, ImprintReader, find_imprint, fit_imprint
from exhume.attacks.informed.label import LabelReader, read_labels
from exhume.attacks.informed.memory import LIMITS
from exhume.attacks.informed.reading import READINGS, Reading, ReadRows
from exhume.attacks.informed.regression import (
    Anchors,
    Basis,
    HeldRows,
    Regression,
    Sample,
    basis_of,
    regress,
)
from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.attacks.releases import weights_of
from exhume.core.contract import (
    Cost,
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
        shadow = trained.records
        reader = read_labels(
            trained.parameters, shadow.labels, trained.base, trained.layout, len(shadow.classes)
        )
        fitted = _fit(trained, holdings(knowledge), progress)
        imprint = _imprint(knowledge, trained, reader) if self.imprint else None
        if imprint is not None and imprint.held_out_error >= _error_as_inferred(
            fitted, trained, reader
        ):
            imprint = None
        seconds = trained.seconds + time.perf_counter() - started
        cost = Cost(seconds, models=len(shadow) + 1)
        sample = trained.parameters[:_SAMPLE].clone()
        return FittedClosedForm(
            trained.base, trained.layout, reader, fitted, shadow.shape, cost, sample, imprint
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
        trained.parameters[reader.rows[:MOST_READ]],
        reader.held_out_scores(),
        trained.records[reader.rows],
        knowledge.public,
    )


def _error_as_inferred(fitted: _Fitted, trained: Shadows, reader: LabelReader) -> float:
    """Mean squared error on the reader's shadows, each answered by the label inferred with it left out."""
    shadow = trained.records[reader.rows]
    usable = torch.tensor(sorted(fitted.regressions), device=trained.base.device)
    inferred = usable[reader.held_out_scores()[:, usable].argmax(1)]
    truth, total = shadow.inputs.flatten(1).double(), 0.0
    for label, regression in fitted.regressions.items():
        wrong = ((inferred == label) & (shadow.labels != label)).nonzero()[:, 0]
        models = trained.parameters[reader.rows[wrong]]
        read = fitted.reading.apply(models, trained.base, trained.layout)
        found, _ = regression.apply(read)
        total += float((found - truth[wrong]).square().mean(1).sum())
        right = int(((inferred == label) & (shadow.labels == label)).sum())
        total += right * regression.held_out_error
    return total / len(truth)


def _fit(trained: Shadows, held: Records, progress: Progress) -> _Fitted:
    """Every label's regression, by the reading with the smallest leave-one-out error."""
    shadow, classes = trained.records, len(trained.records.classes)
    rows = {label: (shadow.labels == label).nonzero()[:, 0] for label in range(classes)}
    rows = {label: own for label, own in rows.items() if len(own) >= _FEWEST}
    if not rows:
        raise NotApplicable("shadow: no label has two records", ever=True)
    basis = basis_of(held)
    trial = {label: own[:_TRIAL] for label, own in rows.items()}
    best: _Fitted | None = None
    for step, reading in enumerate(READINGS):
        progress(_FITTING, step, len(READINGS) + 1)
        fitted = _fit_reading(reading, trained, trial, basis)
        if best is None or fitted.held_out_error < best.held_out_error:
            best = fitted
    assert best is not None  # READINGS is not empty
    if any(len(own) > _TRIAL for own in rows.values()):
        progress(_FITTING, len(READINGS), len(READINGS) + 1)
        best = _fit_reading(best.reading, trained, rows, basis)
    progress(_FITTING, len(READINGS) + 1, len(READINGS) + 1)
    return best


def _fit_reading(
    reading: Reading, trained: Shadows, rows: dict[int, Tensor], basis: Basis
) -> _Fitted:
    """rows: which shadows each label's regression is fitted on."""
    records, every = trained.records.inputs, sum(len(own) for own in rows.values())
    models, base, layout = trained.parameters, trained.base, trained.layout
    whole = 8 * every * len(base) <= LIMITS.whole

    def anchors(own: Tensor) -> Anchors:
        if whole:
            return HeldRows(reading.apply(models[own], base, layout))
        return ReadRows(reading, models, own, base, layout)

    samples = {label: Sample(anchors(own), records[own].flatten(1)) for label, own in rows.items()}
    regressions, error = regress(samples, basis)
    return _Fitted(reading, regressions, error)


@dataclass(frozen=True, eq=False)
class _Fitted:
    reading: Reading
    regressions: dict[int, Regression]
    held_out_error: float  # mean squared leave-one-out error over the shadows


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
    imprint: ImprintReader | None = None  # read instead of the regressions per label

    def run(self, releases: Release) -> Reconstruction:
        who, whose = "the closed form", "the shadow models have"
        released = weights_of(releases, self.shape, len(self.base), who=who, whose=whose)
        if isinstance(released, Reconstruction):
            return released
        started, parameters = time.perf_counter(), released.parameters
        scores = self.reader.scores(parameters)
        usable = torch.tensor(sorted(self.fitted.regressions), device=scores.device)
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
                "mse_on_shadows": (self.imprint or self.fitted).held_out_error,
            },
        )

    def _read(self, parameters: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(m, p), (m, c), (m,) to records (m, q) and their expected squared errors (m,)."""
        if self.imprint is not None:
            return self.imprint.apply(parameters, scores)
        records = scores.new_zeros(len(parameters), math.prod(self.shape), dtype=torch.float64)
        expected = scores.new_zeros(len(parameters), dtype=torch.float64)
        for label, regression in self.fitted.regressions.items():
            rows = (labels == label).nonzero()[:, 0]
            read = self.fitted.reading.apply(parameters[rows], self.base, self.layout)
            records[rows], expected[rows] = regression.apply(read)
        return records, expected
