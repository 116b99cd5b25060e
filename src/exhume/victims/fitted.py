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

from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import Pipeline

from exhume.contract import ExhumeError, NotApplicable, Weights
from exhume.naming import first_line
from exhume.train.glm import Optimum
from exhume.victims.sklearn import release_of_sklearn

__all__ = ["read_skops", "release_of_fitted"]

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
