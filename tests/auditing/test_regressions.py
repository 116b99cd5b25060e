"""Linear and ridge regressions of scikit-learn's, from the model in memory to the verdict."""

from __future__ import annotations

import copy

import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, Ridge

import exhume
from exhume.core.errors import ExhumeError
from exhume.core.results import read_result


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.mark.parametrize("model", [LinearRegression(), Ridge(alpha=0.5)])
def test_every_row_is_reconstructed(diabetes, model, tmp_path):
    x, y = diabetes
    done = exhume.audit(
        model.fit(x, y), (x, y), tmp_path / "run", settings={"fitted": {"targets": 40}}
    )
    assert done.verdict.word == "leaks"
    assert (done.leak.successes, done.leak.trials) == (40, 40)
    assert done.metrics["certified"] == 40
    assert done.metrics["mse"] < 1e-12
    (section,) = done.result.attacks
    assert section.spec.id == "regression"
    premise = section.extent.premise
    assert premise.holds
    assert premise.value < 1e-6 < 0.1 < premise.stranger
    assert section.extent.strength == "reconstructed"
    assert read_result(tmp_path / "run" / "result.json").to_json() == done.result.to_json()


def test_columns_have_the_names_and_units_of_the_frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = load_diabetes(as_frame=isinstance(pandas.__version__, str), scaled=False)
    model = Ridge().fit(table.data, table.target)
    done = exhume.audit(
        model, (table.data, table.target), tmp_path / "run", settings={"fitted": {"targets": 5}}
    )
    assert done.verdict.word == "leaks"
    assert "bmi" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("kind", ["of others", "weighed", "scaled", "interpolates"])
def test_what_is_not_the_optimum_of_these_rows_is_not_audited(diabetes, kind, tmp_path):
    x, y = diabetes
    rows = slice(0, 200)
    model = Ridge(alpha=0.5).fit(x[rows], y[rows])
    if kind == "of others":
        model = Ridge(alpha=0.5).fit(x[200:], y[200:])
    elif kind == "weighed":
        model = Ridge(alpha=0.5).fit(x[rows], y[rows], sample_weight=[2.0] * 200)
    elif kind == "scaled":
        model = copy.deepcopy(model)
        model.coef_ = 1.1 * model.coef_
    else:
        rows = slice(0, 8)
        model = LinearRegression().fit(x[rows], y[rows])
    done = exhume.audit(model, (x[rows], y[rows]), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert done.metrics["certified"] == 0
    if kind == "weighed":
        assert "a weight of 2 for each record" in done.verdict.sentence


def test_rows_that_do_not_fit_are_one_sentence(diabetes, tmp_path):
    x, y = diabetes
    with pytest.raises(ExhumeError, match="inputs, targets: shapes"):
        exhume.audit(Ridge().fit(x, y), (x, y[:5]), tmp_path / "run")
    with pytest.raises(ExhumeError, match="11 inputs and 1 targets|numbers a row"):
        exhume.audit(Ridge().fit(x, y), (x[:, :5], y), tmp_path / "run")
    assert not (tmp_path / "run").exists()
