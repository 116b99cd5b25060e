"""A fitted scikit-learn `LogisticRegression` as a release: its weights, and its penalty as a recipe.

scikit-learn minimises C · summed loss + 1/2 ||w||^2 with a free intercept (liblinear penalises it too).
Its default tolerance stops well before the optimum; how exact a reconstruction can be follows from that.
"""

from __future__ import annotations

import warnings
from math import prod
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from exhume.core.contract import (
    ExhumeError,
    NotApplicable,
    Progress,
    Records,
    Secret,
    Weights,
    silent,
)
from exhume.models.mlp import MLP
from exhume.train.glm import Optimum, Penalty

__all__ = ["release_of_sklearn", "release_one_sklearn_each"]

_SAID = (
    *("penalty", "l1_ratio", "fit_intercept", "intercept_scaling", "class_weight"),
    *("solver", "multi_class"),
)  # settings that decide what was minimised


def release_of_sklearn(
    model: LogisticRegression, input_shape: tuple[int, ...]
) -> tuple[Weights, Optimum]:
    """One release (1, p) and how it was trained. Label i of any records stands for `model.classes_[i]`."""
    settings = _settings_of(model)
    if not hasattr(model, "coef_"):
        raise ExhumeError("model: this LogisticRegression is not fitted; call fit first")
    if not settings["fit_intercept"]:
        raise NotApplicable(
            "fit_intercept=False: without a bias the missing gradient gives the record's direction, "
            "not its length",
            ever=True,
        )
    _check_numbers(model)
    outputs, inputs = model.coef_.shape
    if inputs != prod(input_shape):
        raise ExhumeError(f"input_shape: {input_shape} does not hold the model's {inputs} inputs")
    _one_softmax(settings, outputs)
    flat = np.concatenate([model.coef_.ravel(), model.intercept_]).astype(np.float64)
    architecture = MLP(input_shape, (), outputs)
    recipe = Optimum(architecture, _penalty(settings), tolerance=float(settings["tol"]))
    return Weights(torch.from_numpy(flat)[None], architecture.layout), recipe


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


def _settings_of(model: LogisticRegression) -> dict[str, Any]:
    """What was minimised; a model that came in a file may say anything."""
    try:
        settings: dict[str, Any] = model.get_params()
    except AttributeError as error:
        raise ExhumeError(f"model: a setting is missing ({error})") from error
    for name in _SAID:
        if not isinstance(settings.get(name), str | int | float | dict | None):
            raise ExhumeError(f"model: {name} is neither a text nor a number")
    for name in ("C", "tol"):
        value = settings[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ExhumeError(
                f"model: {name}: {str(value)[:80]!r} given, a number above 0 is needed"
            )
    return settings


def _check_numbers(model: LogisticRegression) -> None:
    """A model that came in a file may never have been fitted."""
    for name in ("coef_", "intercept_"):
        values = np.asarray(getattr(model, name, None))
        if values.dtype.kind not in "fiu":
            raise ExhumeError(f"model: {name} is no array of numbers")
        if not np.isfinite(values).all():
            raise ExhumeError(f"model: {name} holds NaN or infinite values")
    weights, biases = np.shape(model.coef_), np.shape(model.intercept_)
    if len(weights) != 2:
        raise ExhumeError(f"model: coef_ has shape {weights}, (outputs, inputs) is needed")
    if biases != weights[:1]:
        raise ExhumeError(f"model: intercept_ has shape {biases}, {weights[:1]} is needed")


def _one_softmax(settings: dict[str, object], outputs: int) -> None:
    """Refuse what is not one softmax (or one sigmoid) over equally weighted records."""
    if settings["class_weight"] is not None:
        raise NotApplicable(
            f"class_weight={settings['class_weight']!r}: records of unequal weight are not supported",
            ever=True,
        )
    scheme = settings.get("multi_class", "auto")  # gone from newer versions
    legal = ("auto", "deprecated", "ovr" if outputs == 1 else "multinomial")
    if scheme not in legal or (settings["solver"] == "liblinear" and outputs > 1):
        raise NotApplicable(
            f"multi_class={scheme!r} with solver {settings['solver']!r}: only one softmax over all "
            "classes, or one sigmoid for two, is supported",
            ever=True,
        )


def _penalty(settings: dict[str, object]) -> Penalty:
    kind, c = settings.get("penalty", "deprecated"), settings["C"]
    assert isinstance(c, int | float)
    if kind not in ("l2", "deprecated", None) or (kind == "deprecated" and settings["l1_ratio"]):
        raise NotApplicable(
            f"penalty={kind!r}, l1_ratio={settings['l1_ratio']!r}: only the L2 penalty is supported",
            ever=True,
        )
    if kind is None:
        return Penalty(0.0, averaged=False, bias=False)
    liblinear = settings["solver"] == "liblinear"
    if liblinear and settings["intercept_scaling"] != 1:
        raise NotApplicable(
            f"intercept_scaling={settings['intercept_scaling']!r}: only 1 is supported", ever=True
        )
    return Penalty.of_sum(float(c), bias=liblinear)  # C = inf gives strength 0
