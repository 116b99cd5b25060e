"""A network on top of the closed form: it learns what records look like that the closed form drew so.

The closed form is linear given the label, so what it draws has errors that no record has: speckle, ghosts
of others. Its leave-one-out drawings of the shadows' records show an adversary what these errors look like;
a small network learns to take them away. It starts as the identity, and its epoch is the best on shadows
kept aside, so on those it is never worse than the closed form.

Memory: 4·s·(q + c) bytes for s shadows and records of q values, besides the closed form's.
Cost: the closed form; then `epochs` passes over the shadows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.informed.closed_form import ClosedForm, FittedClosedForm
from exhume.attacks.informed.learner import Pairs, ReconstructorFit, Training, fit
from exhume.attacks.informed.reconn import split_shadows
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Store,
    silent,
)
from exhume.models.reconstructors import Corrector

_FEWEST = 20  # shadows: fewer teach nothing


@dataclass(frozen=True)
class Residual:
    """The closed form, its reconstructions corrected by a network.

    Sees: `Weights`, r models, each trained on the fixed set and one unknown record.
    Assumes: what the closed form assumes, and at least 20 shadows of labels that have two.
    Guarantees: nothing about the truth is used; the epoch is chosen on held-out shadows, where epoch 0 is
    the closed form itself. Deterministic from the key; a stopped run resumes with the same bits.
    Reference: Balle22 (setting); the closed form and the correction are ours.
    """

    network: Corrector = Corrector()
    training: Training = Training(optimiser="adam", rate=4e-3, batch=64, epochs=30)
    held_out: float = 0.1  # share of the shadows that chooses the epoch
    chunk: int = 64  # shadow models trained at once

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ExhumeError(f"held_out: {self.held_out} given, legal is 0 < held_out < 1")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedResidual:
        closed = ClosedForm(chunk=self.chunk, imprint=False)
        inner = closed.prepare(knowledge, key=key, store=store, progress=progress)
        started = time.perf_counter()
        (shadow,) = knowledge.require("the correction", "shadow")
        # what the closed form makes of each shadow with it left out, and which shadows these are
        regressions = inner.fitted.regressions
        drawn = torch.cat([regression.held_out for regression in regressions.values()])
        rows = torch.cat([(shadow.labels == label).nonzero()[:, 0] for label in regressions])
        if len(rows) < _FEWEST:
            raise NotApplicable(
                f"shadow: {len(rows)} records of labels that have two, {_FEWEST} needed", ever=True
            )
        features = _features(drawn, shadow.labels[rows], len(shadow.classes))
        parts = split_shadows(len(rows), self.held_out, key.fold("residual"))
        aside = torch.cat([parts.choose, parts.report])
        pairs = Pairs(features, shadow.inputs[rows])
        fitted = fit(
            self.network.build(len(shadow.classes), shadow.shape, key).to(features.device),
            self.training,
            pairs[parts.train.to(features.device)],
            pairs[aside.to(features.device)],
            key=key.fold("residual"),
            store=store,
            progress=progress,
            stage="training the correction",
        )
        seconds = inner.cost.seconds + time.perf_counter() - started
        low, high = float(shadow.inputs.min()), float(shadow.inputs.max())
        return FittedResidual(inner, fitted, len(shadow.classes), (low, high), seconds)


def _features(drawn: Tensor, labels: Tensor, classes: int) -> Tensor:
    return torch.cat([drawn, F.one_hot(labels, classes).to(drawn)], 1)


@dataclass(frozen=True, eq=False)
class FittedResidual:
    """Good for every release of the same recipe, start and fixed set."""

    inner: FittedClosedForm
    correction: ReconstructorFit
    classes: int
    legal: tuple[float, float]  # range of the records' values
    seconds: float

    def run(self, releases: Release) -> Reconstruction:
        first = self.inner.run(releases)
        if first.status.outcome is Outcome.NOT_APPLICABLE:
            return first
        started = time.perf_counter()
        assert first.labels is not None  # the closed form infers them
        drawn, labels = first.candidates[:, 0].flatten(1), first.labels[:, 0]
        with torch.no_grad():
            corrected = self.correction.network(_features(drawn, labels, self.classes)).clamp(
                *self.legal
            )
        errors = self.correction.errors
        gained = float(errors.min() / errors[0])
        seconds = self.seconds + time.perf_counter() - started
        return replace(
            first,
            candidates=corrected[:, None],
            cost=Cost(seconds, first.cost.models),
            observed={
                **first.observed,
                "epoch": float(self.correction.epoch),
                "error_left": gained,  # MAE + MSE on held-out shadows, over the closed form's
            },
        )
