"""A fitted scikit-learn model, in memory or in a .skops file, as a release that can be audited.

    release, recipe = release_of_fitted(model, (30,))
    knowledge = Knowledge(architecture=recipe.architecture, recipe=recipe, fixed=everything_but_one)
    found = GlmClosedForm().prepare(knowledge, key=key, store=NullStore()).run(release)

A .skops file is loaded only if it names nothing but scikit-learn's own types: no other is ever built.
"""

from __future__ import annotations

import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import Pipeline

from exhume.core.contract import ExhumeError, NotApplicable, Records, Weights
from exhume.naming import first_line
from exhume.train.glm import Optimum
from exhume.victims.sklearn import release_of_sklearn

__all__ = ["read_skops", "records_of_fitted", "release_of_fitted"]

_LARGEST = 1 << 30  # bytes that a .skops file may unpack to


def release_of_fitted(
    source: object | Path, input_shape: tuple[int, ...]
) -> tuple[Weights, Optimum]:
    """One release (1, p) and how it was trained; says of any other model why it cannot be audited."""
    model = read_skops(source) if isinstance(source, Path) else source
    kind = type(model).__name__
    if isinstance(model, Pipeline):
        raise ExhumeError(
            "model: a Pipeline; pass its last step, and the records as that step sees them"
        )
    if not isinstance(model, LogisticRegression) or isinstance(model, LogisticRegressionCV):
        raise NotApplicable(
            f"{kind}: only LogisticRegression is at the optimum of a known penalised likelihood",
            ever=True,
        )
    return release_of_sklearn(model, input_shape)


def records_of_fitted(model: Any, inputs: Any, labels: Any) -> Records:
    """What a model was fitted on: (n, d) numbers and (n,) labels, each among `model.classes_`."""
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
    return Records(torch.from_numpy(x), rows, tuple(str(name) for name in classes))


def read_skops(path: Path) -> Any:
    """What a .skops file holds, if it is made of scikit-learn's own types alone."""
    if not path.is_file():
        raise ExhumeError(f"model: there is no file {path}")
    if path.suffix != ".skops":
        raise ExhumeError(
            f"model: {path} is not a .skops file; pickles and joblib files run code and are not read"
        )
    skops = _skops()
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _LARGEST:
            raise ExhumeError(f"model: {path} unpacks to {size:,} bytes, {_LARGEST:,} are allowed")
        unknown = skops.get_untrusted_types(file=path)
        if unknown:
            raise ExhumeError(
                f"model: {path} holds types that are not scikit-learn's own and are not built: "
                f"{', '.join(unknown[:3])}"
            )
        return skops.load(path, trusted=[])
    except ExhumeError:
        raise
    except Exception as error:
        raise ExhumeError(f"model: {path} is truncated or damaged ({first_line(error)})") from error


def _skops() -> Any:
    try:
        return import_module("skops.io")
    except ModuleNotFoundError:
        raise ExhumeError("a .skops file needs skops: pip install 'exhume[skops]'") from None
