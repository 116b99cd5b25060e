"""A fitted scikit-learn model, in memory or in a .skops file, as a release that can be audited.

    release, recipe = release_of_fitted(model, (30,))
    knowledge = Knowledge(architecture=recipe.architecture, recipe=recipe, fixed=everything_but_one)
    found = GlmClosedForm().prepare(knowledge, key=key, store=NullStore()).run(release)

A .skops file is loaded only if it names nothing but scikit-learn's own types: no other is ever built.
"""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import is_regressor
from sklearn.linear_model import LinearRegression, LogisticRegression, LogisticRegressionCV, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, NotApplicable, Records, Weights
from exhume.core.errors import optional
from exhume.core.own_code import first_line
from exhume.core.records import Column, rows_of_regression
from exhume.models.mlp import MLP
from exhume.train.glm import Optimum, Penalty
from exhume.train.linear import LinearFit

_OPTIMISERS = "sklearn.neural_network._stochastic_optimizers"
_PLAIN = frozenset(f"{_OPTIMISERS}.{name}Optimizer" for name in ("Adam", "SGD"))  # numbers alone
_LARGEST = 1 << 30  # bytes that a .skops file may unpack to


def release_of_fitted(
    source: object | Path, input_shape: tuple[int, ...]
) -> tuple[Weights, Optimum | LinearFit]:
    """One release (1, p) and how it was trained; says of any other model why it cannot be audited."""
    model = read_skops(source) if isinstance(source, Path) else source
    kind = type(model).__name__
    if isinstance(model, MLPClassifier):
        raise NotApplicable(
            "MLPClassifier: it has hidden layers, so that it is a checkpoint: exhume audit-weights "
            "model.skops --trained-on DATA, or exhume.audit(model, (inputs, labels), "
            "strangers=(others, their_labels))",
            ever=True,
        )
    if isinstance(model, Pipeline):
        raise ExhumeError(
            "model: a Pipeline; pass its last step, and the records as that step sees them"
        )
    if type(model) in (LinearRegression, Ridge):
        return release_of_regression(model, input_shape)
    if not isinstance(model, LogisticRegression) or isinstance(model, LogisticRegressionCV):
        raise NotApplicable(
            f"{kind}: only LogisticRegression, LinearRegression and Ridge are at the optimum of a known "
            "penalised likelihood",
            ever=True,
        )
    return release_of_sklearn(model, input_shape)


def records_of_fitted(model: Any, inputs: Any, labels: Any) -> Records:
    """What a model was fitted on: (n, d) numbers and (n,) labels, each among `model.classes_`.

    A regression's are whole rows, (n, d) numbers and after them (n,) or (n, c) targets; a class is a tenth of
    the first target.
    """
    if is_regressor(model):
        return _rows_of_regression(model, inputs, labels)
    x, y = np.asarray(inputs, dtype=np.float64), np.asarray(labels)
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(x):
        raise ExhumeError(
            f"inputs, labels: shapes {x.shape} and {y.shape} given, (n, d) and (n,) needed"
        )
    if not np.isfinite(x).all():
        raise ExhumeError("inputs: NaN or infinite values")
    classes = list(getattr(model, "classes_", np.unique(y)))
    place = {name: index for index, name in enumerate(classes)}
    strange = sorted({str(name) for name in y.tolist() if name not in place})
    if strange:
        raise ExhumeError(f"labels: {strange[0]} is not one of the model's classes")
    rows = torch.tensor([place[name] for name in y.tolist()])
    return Records(
        torch.from_numpy(x),
        rows,
        tuple(str(name) for name in classes),
        columns=tuple(map(Column, _names_of(model))),
    )


def _names_of(model: Any) -> list[str]:
    """Names of the inputs, as the model knows them; empty: it was fitted without names."""
    return [str(name) for name in getattr(model, "feature_names_in_", ())]


def _rows_of_regression(model: Any, inputs: Any, targets: Any) -> Records:
    x, y = np.asarray(inputs, dtype=np.float64), np.asarray(targets)
    if y.dtype.kind not in "fiu" or x.ndim != 2 or y.ndim not in (1, 2) or len(x) != len(y):
        raise ExhumeError(
            f"inputs, targets: shapes {x.shape} and {y.shape} given, numbers (n, d) and (n,) or (n, c) needed"
        )
    rows = np.concatenate([x, y.reshape(len(y), -1).astype(np.float64)], 1)
    if not len(rows) or not np.isfinite(rows).all():
        raise ExhumeError("inputs, targets: none, or NaN or infinite values")
    names, outputs = _names_of(model), rows.shape[1] - x.shape[1]
    of_targets = ["target"] if outputs == 1 else [f"target {i}" for i in range(outputs)]
    columns = tuple(map(Column, [*names, *of_targets])) if names else ()
    return rows_of_regression(torch.from_numpy(rows), x.shape[1], columns)


def read_skops(path: Path) -> Any:
    """What a .skops file holds, if it is made of scikit-learn's own types alone."""
    if not path.is_file():
        raise ExhumeError(f"model: there is no file {path}")
    if path.suffix != ".skops":
        raise ExhumeError(
            f"model: {path} is not a .skops file; pickles and joblib files run code and are not read"
        )
    skops = optional("skops.io", "skops", "a .skops file")
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _LARGEST:
            raise ExhumeError(f"model: {path} unpacks to {size:,} bytes, {_LARGEST:,} are allowed")
        named = set(skops.get_untrusted_types(file=path))
        unknown = sorted(named - _PLAIN)
        if unknown:
            raise ExhumeError(
                f"model: {path} holds types that are not scikit-learn's own and are not built: "
                f"{', '.join(unknown[:3])}"
            )
        return skops.load(path, trusted=sorted(named))
    except ExhumeError:
        raise
    except Exception as error:
        raise ExhumeError(f"model: {path} is truncated or damaged ({first_line(error)})") from error


_ACTIVATIONS = {"identity": nn.Identity, "logistic": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


def network_of_mlp(model: MLPClassifier) -> nn.Sequential:
    """The layers of a fitted `MLPClassifier`, without the softmax (or sigmoid) at its end, in float32."""
    weights = [np.asarray(weight) for weight in getattr(model, "coefs_", ())]
    biases = [np.asarray(bias) for bias in getattr(model, "intercepts_", ())]
    if not weights or len(weights) != len(biases):
        raise ExhumeError("model: this MLPClassifier is not fitted; call fit first")
    if model.activation not in _ACTIVATIONS:
        raise ExhumeError(
            f"model: activation {str(model.activation)[:80]!r} is not one of {', '.join(_ACTIVATIONS)}"
        )
    layers: list[nn.Module] = [nn.Flatten()]
    for weight, bias in zip(weights, biases, strict=True):
        if weight.dtype.kind != "f" or weight.ndim != 2 or bias.shape != weight.shape[1:]:
            raise ExhumeError("model: coefs_ and intercepts_ do not fit each other")
        layer = nn.Linear(*weight.shape)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight.T.copy()))
            layer.bias.copy_(torch.from_numpy(bias.astype(weight.dtype)))
        layers += [layer, _ACTIVATIONS[model.activation]()]
    return nn.Sequential(*layers[:-1])


_SAID = (
    *("penalty", "l1_ratio", "fit_intercept", "intercept_scaling", "class_weight"),
    *("solver", "multi_class"),
)  # settings that decide what was minimised


def release_of_sklearn(
    model: LogisticRegression, input_shape: tuple[int, ...]
) -> tuple[Weights, Optimum]:
    """One release (1, p) and how it was trained. Label i of any records stands for `model.classes_[i]`."""
    settings = _settings_of(model)
    flat, outputs, inputs = _fitted_numbers(model)
    if inputs != prod(input_shape):
        raise ExhumeError(f"input_shape: {input_shape} does not hold the model's {inputs} inputs")
    _one_softmax(settings, outputs)
    architecture = MLP(input_shape, (), outputs)
    recipe = Optimum(architecture, _penalty(settings), tolerance=float(settings["tol"]))
    return Weights(flat, architecture.layout), recipe


def release_of_regression(
    model: LinearRegression | Ridge, input_shape: tuple[int, ...]
) -> tuple[Weights, LinearFit]:
    """One release (1, p) and how it was fitted. input_shape: of whole rows, inputs and targets."""
    if model.positive:
        raise NotApplicable("positive=True: weights at 0 are not where gradients cancel", ever=True)
    flat, outputs, inputs = _fitted_numbers(model)
    if prod(input_shape) != inputs + outputs:
        raise ExhumeError(
            f"records: {prod(input_shape)} numbers a row, the model has {inputs} inputs and {outputs} "
            "targets; pass exhume.audit(model, (inputs, targets)) with the targets as numbers"
        )
    alphas = np.unique(np.asarray(getattr(model, "alpha", 0.0), dtype=np.float64))
    if len(alphas) != 1:
        raise NotApplicable("alpha: only one penalty for all targets is supported", ever=False)
    architecture = MLP((inputs,), (), outputs)
    recipe = LinearFit(architecture, Penalty(float(alphas[0]), averaged=False, bias=False))
    return Weights(flat, architecture.layout), recipe


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


def _fitted_numbers(
    model: LogisticRegression | LinearRegression | Ridge,
) -> tuple[Tensor, int, int]:
    """Weights and biases (1, p), outputs and inputs; a model that came in a file may hold anything."""
    if not hasattr(model, "coef_"):
        raise ExhumeError(f"model: this {type(model).__name__} is not fitted; call fit first")
    if not model.fit_intercept:
        raise NotApplicable(
            "fit_intercept=False: without a bias the missing gradient gives the record's direction, "
            "not its length",
            ever=True,
        )
    weights, biases = np.atleast_2d(model.coef_), np.atleast_1d(getattr(model, "intercept_", ()))
    for name, values in (("coef_", weights), ("intercept_", biases)):
        if values.dtype.kind not in "fiu":
            raise ExhumeError(f"model: {name} is no array of numbers")
        if not np.isfinite(values).all():
            raise ExhumeError(f"model: {name} holds NaN or infinite values")
    if weights.ndim != 2 or biases.shape != weights.shape[:1]:
        raise ExhumeError(
            f"model: coef_ and intercept_ have shapes {weights.shape} and {biases.shape}, (outputs, inputs) "
            "and (outputs,) are needed"
        )
    flat = np.concatenate([weights.ravel(), biases]).astype(np.float64)
    return torch.from_numpy(flat)[None], *weights.shape


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
