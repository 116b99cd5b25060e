"""The closed form of linear models against the Adversarial Robustness Toolbox's DatabaseReconstruction.

Same fitted scikit-learn model, same known records, same threads; each of a few records in turn is the
missing one. The toolbox searches for the record whose refitted model has the released weights, refitting
for every trial value; ours solves for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from exhume.attacks.informed.glm import GlmClosedForm
from exhume.bench.entries import entry, timed
from exhume.core.contract import ExhumeError, Key, Knowledge, Progress, Records
from exhume.readers.fitted import release_of_sklearn
from exhume.store.shards import NullStore

_RECORDS = 60  # of two iris species; the toolbox's time grows with records, inputs and classes
_TARGETS = 5
_REPEATS = 20  # of ours, the best kept; the toolbox takes seconds and runs once

Rival = Callable[[LogisticRegression, Records], tuple[Tensor, int]]


def run(progress: Progress) -> list[dict[str, Any]]:
    reconstruct = toolbox()
    records = _records()
    model = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(
        records.inputs.numpy(), records.labels.numpy()
    )
    ours, rival = _Side(), _Side()
    for target in range(_TARGETS):
        progress("bench glm", target, _TARGETS)
        fixed, truth = _without(records, target)
        runs = [timed(partial(closed_form, model, fixed)) for _ in range(_REPEATS)]
        ours.add(min(seconds for seconds, _ in runs), *runs[-1][1], truth)
        seconds, answer = timed(partial(reconstruct, model, fixed))
        rival.add(seconds, *answer, truth)
    progress("bench glm", _TARGETS, _TARGETS)
    more = {
        "ours_largest_error": max(ours.errors),
        "baseline_largest_error": max(rival.errors),
        "ours_median_error": median(ours.errors),
        "baseline_median_error": median(rival.errors),
        "ours_labels_right": sum(ours.right),
        "baseline_labels_right": sum(rival.right),
        "targets": _TARGETS,
    }
    case = f"logistic regression, 4 inputs, |D-| = {_RECORDS}, scikit-learn to 1e-10"
    times = (median(ours.seconds), median(rival.seconds))
    return [entry("glm", case, *times, _REPEATS, more)]


@dataclass(frozen=True, eq=False)
class _Side:
    """What one of the two achieved, target by target."""

    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)  # largest over the record's values
    right: list[bool] = field(default_factory=list)  # label

    def add(self, seconds: float, record: Tensor, guess: int, truth: Records) -> None:
        self.seconds.append(seconds)
        self.errors.append(float((record - truth.inputs[0]).abs().max()))
        self.right.append(guess == int(truth.labels[0]))


def closed_form(model: LogisticRegression, fixed: Records) -> tuple[Tensor, int]:
    release, recipe = release_of_sklearn(model, fixed.shape)
    attack = GlmClosedForm().prepare(
        Knowledge(recipe=recipe, fixed=fixed), key=Key.from_seed(0), store=NullStore()
    )
    answer = attack.run(release)
    assert answer.labels is not None  # this attack always infers them
    return answer.candidates[0, 0], int(answer.labels[0, 0])


def toolbox() -> Rival:
    """The toolbox's attack as a function, imported only when it is asked for."""
    try:
        from art.attacks.inference.reconstruction import DatabaseReconstruction
        from art.estimators.classification.scikitlearn import ScikitlearnLogisticRegression
    except ImportError as error:
        raise ExhumeError(
            f"bench glm compares with the Adversarial Robustness Toolbox, which is not installed "
            f"({error}): pip install 'exhume[art]'"
        ) from error

    def reconstruct(model: LogisticRegression, fixed: Records) -> tuple[Tensor, int]:
        attack = DatabaseReconstruction(ScikitlearnLogisticRegression(model))
        record, label = attack.reconstruct(fixed.inputs.numpy(), fixed.labels.numpy())
        return torch.from_numpy(record[0]), int(label[0].argmax())

    return reconstruct


def _records() -> Records:
    """Two species that overlap, shuffled: the fixed records and one more."""
    inputs, labels = load_iris(return_X_y=True)
    overlapping = torch.from_numpy(labels).nonzero()[:, 0]
    generator = Key.from_seed(0).fold("bench glm").generator()
    chosen = overlapping[torch.randperm(len(overlapping), generator=generator)[: _RECORDS + 1]]
    return Records(
        torch.from_numpy(inputs)[chosen],
        torch.from_numpy(labels).long()[chosen] - 1,
        ("versicolor", "virginica"),
    )


def _without(records: Records, target: int) -> tuple[Records, Records]:
    """All records but one, and that one."""
    others = torch.arange(len(records)) != target
    return records[others], records[~others]
