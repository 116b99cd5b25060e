"""A fitted scikit-learn `LogisticRegression` as a victim: one released copy per target."""

from __future__ import annotations

import warnings

import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from exhume.core.contract import ExhumeError, Progress, Records, Secret, Weights, silent
from exhume.readers.fitted import release_of_sklearn
from exhume.train.glm import Optimum


def release_one_sklearn_each(
    model: LogisticRegression, fixed: Records, targets: Records, *, progress: Progress = silent
) -> tuple[Weights, Optimum, Secret]:
    """One released copy of `model` per target, each fitted on `fixed` and that target alone.

    A copy that ran into its `max_iter` is released as it is; how far that is from the optimum shows in
    the attack's certificate. Every class must be among the fixed records, so that all copies agree.
    """
    inputs, labels = fixed.inputs.flatten(1).double(), fixed.labels
    absent = set(range(len(fixed.classes))) - set(labels.tolist())
    if absent:
        names = ", ".join(fixed.classes[index] for index in sorted(absent))
        raise ExhumeError(f"fixed: no record of {names}; scikit-learn would leave the class out")
    rows, recipe = [], None
    stage = "fitting scikit-learn's models"
    progress(stage, 0, len(targets))
    for index in range(len(targets)):
        target = targets[index : index + 1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = clone(model).fit(
                torch.cat([inputs, target.inputs.flatten(1).double()]).numpy(),
                torch.cat([labels, target.labels]).numpy(),
            )
        release, recipe = release_of_sklearn(fitted, fixed.shape)
        rows.append(release.parameters)
        progress(stage, index + 1, len(targets))
    if recipe is None:
        raise ExhumeError("targets: 0 given, at least 1 needed")
    return Weights(torch.cat(rows), recipe.architecture.layout), recipe, Secret(targets)
