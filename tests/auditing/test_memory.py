"""A model and records in memory: every kind that `exhume.audit` takes, and what it says of the others."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC
from torch import nn
from torch.utils.data import TensorDataset

import exhume
from exhume import readers
from exhume.core.contract import ExhumeError
from exhume.readers.fitted import network_of_mlp

SIZES = {"fixed": 40, "targets": 12, "shadows": 100, "public": 20}
SETTINGS = {"data": SIZES, "machine": {"threads": 1}}


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def descend(model, inputs, labels):
    """Plain gradient descent, as a user writes it."""
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()


@pytest.fixture(scope="module")
def digits():
    return readers.load("digits")[:600]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """An audit of a training that is named by its settings."""
    out = tmp_path_factory.mktemp("memory") / "run"
    pair = digits.inputs, digits.labels
    return exhume.audit(network(), pair, train={"steps": 30}, out=out, settings=SETTINGS)


def test_a_training_by_settings_leaks_as_that_of_a_brief(trained, digits, tmp_path):
    assert trained.verdict.word == "leaks"
    assert trained.result.data == "records in memory"
    named = exhume.audit(
        network, readers.load("digits")[:600], train={"steps": 30}, out=tmp_path, settings=SETTINGS
    )
    assert named.leak.trials == trained.leak.trials  # a function that makes the model does as well
    assert named.verdict.word == "leaks"


def test_each_target_has_a_row_a_rank_and_its_similarity(trained):
    assert len(trained.records) == SIZES["targets"]
    assert sum(one.identified for one in trained.records) == trained.leak.successes
    assert len({one.row for one in trained.records}) == SIZES["targets"]
    assert all(one.rank >= 0 and one.similarity["mse"] >= 0 for one in trained.records)


def test_a_frame_where_pandas_is_there(trained, monkeypatch):
    frames = SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    monkeypatch.setitem(sys.modules, "pandas", frames)
    rows, columns = trained.to_pandas()
    assert columns[:3] == ["row", "identified", "rank"]
    assert "mse" in columns
    assert [row[0] for row in rows] == [one.row for one in trained.records]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ExhumeError, match="pip install pandas"):
        trained.to_pandas()


def test_it_prints_as_a_table_and_links_its_report(trained):
    assert "Closed-form" in str(trained)
    shown = trained._repr_html_()
    assert f'href="{trained.report.resolve().as_uri()}"' in shown
    assert trained.verdict.word in shown


def test_training_of_ones_own_in_a_folder_that_the_same_call_finds(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {**SETTINGS, "data": {**SIZES, "shadows": 30}}
    dataset = TensorDataset(digits.inputs, digits.labels)
    done = exhume.audit(network(), dataset, train=descend, settings=settings)
    assert done.folder.parent.name == "runs"
    assert done.result.strongest.leak.trials == SIZES["targets"]
    again = exhume.audit(network(), dataset, train=descend, settings=settings)
    assert again.folder == done.folder
    assert again.leak == done.leak
    other = exhume.audit(network(), dataset, train={"steps": 5}, settings=settings)
    assert other.folder != done.folder


def test_the_weights_of_a_module_are_a_checkpoint(digits, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.GELU(), nn.Linear(40, 10))
    settings = {"checkpoint": {"restarts": 1, "steps": 3}, "machine": {"threads": 1}}
    done = exhume.audit(
        model, digits[:20], strangers=digits[20:400], out=tmp_path / "run", settings=settings
    )
    (row,) = done.result.releases
    assert row.kind == "checkpoint"
    assert "gelu" in str(done.result.victim["architecture"])
    assert done.verdict.word in ("not audited", "leaks")


def test_a_fitted_model_of_scikit_learn(tmp_path):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(60, 5))
    labels = np.where(inputs[:, 0] > 0, "yes", "no")
    model = LogisticRegression(tol=1e-10, max_iter=1000).fit(inputs, labels)
    done = exhume.audit(model, (inputs, labels), tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert {one.identified for one in done.records} == {None}  # only a proof speaks
    same = exhume.audit_fitted(model, inputs, labels, tmp_path / "same")
    assert same.leak == done.leak


@pytest.fixture(scope="module")
def wine():
    inputs, labels = load_wine(return_X_y=True)
    return (inputs - inputs.mean(0)) / inputs.std(0), np.array(["red", "rose", "white"])[labels]


@pytest.mark.parametrize("activation", ["relu", "logistic", "tanh", "identity"])
def test_the_layers_of_a_classifier_of_scikit_learn(wine, activation):
    inputs, labels = wine
    for wanted in (labels, labels == "red"):
        model = MLPClassifier((9, 4), activation=activation, max_iter=5).fit(inputs, wanted)
        outputs = network_of_mlp(model)(torch.from_numpy(inputs).float()).detach()
        shares = model.predict_proba(inputs)
        found = outputs.softmax(1) if outputs.shape[1] > 1 else outputs.sigmoid()
        np.testing.assert_allclose(found, shares[:, -found.shape[1] :], atol=1e-5)


def test_a_classifier_with_hidden_layers_is_a_checkpoint(wine, tmp_path):
    inputs, labels = wine
    order = np.random.default_rng(0).permutation(len(labels))
    inputs, labels = inputs[order], labels[order]
    model = MLPClassifier((30,), max_iter=20).fit(inputs[:30], labels[:30])
    settings = {"checkpoint": {"restarts": 1, "steps": 3}, "machine": {"threads": 1}}
    done = exhume.audit(
        model,
        (inputs[:30], labels[:30]),
        strangers=(inputs[30:], labels[30:]),
        out=tmp_path / "run",
        settings=settings,
    )
    assert [row.kind for row in done.result.releases] == ["checkpoint"]
    assert done.result.classes == ("red", "rose", "white")
    with pytest.raises(ExhumeError, match="strangers: the weights"):
        exhume.audit(model, (inputs[:30], labels[:30]), tmp_path / "other")
    with pytest.raises(ExhumeError, match="is not fitted"):
        network_of_mlp(MLPClassifier())


def test_a_file_of_scikit_learn_is_a_checkpoint_too(wine, tmp_path):
    skops = pytest.importorskip("skops.io")
    inputs, labels = wine
    model = MLPClassifier((30,), activation="tanh", max_iter=20).fit(inputs, labels)
    skops.dump(model, tmp_path / "m.skops")
    numbers = np.unique(labels, return_inverse=True)[1]
    np.savez(tmp_path / "wine.npz", x=inputs.astype(np.float32), y=numbers)
    section = {"file": str(tmp_path / "m.skops"), "rows": "0:30", "restarts": 1, "steps": 3}
    brief = {"data": {"source": str(tmp_path / "wine.npz")}, "checkpoint": section}
    done = exhume.audit(brief, tmp_path / "run")
    assert "tanh" in str(done.result.victim["architecture"])
    skops.dump(LogisticRegression().fit(inputs, labels), tmp_path / "m.skops")
    with pytest.raises(ExhumeError, match="not an MLPClassifier"):
        exhume.audit(brief, tmp_path / "other")


@pytest.mark.parametrize(
    ("model", "records", "more", "why"),
    [
        (3, ([[0.0]], [0]), {}, "a int cannot be audited"),
        (network, "digits", {}, "a function without train="),
        (network(), "digits", {}, "strangers: the weights"),
        (network(), "digits", {"train": {"step": 3}}, "did you mean 'steps'"),
        (network(), 7, {"train": {}}, "records: int given"),
        (network(), (np.zeros((3, 4)), [0, 1]), {"train": {}}, "one label for each record"),
        (network(), "digits", {"train": {}, "strangers": "digits"}, "strangers: given"),
        (LogisticRegression(), "digits", {"train": {}}, "train: given"),
        ({"data": {"source": "digits"}}, None, {"train": {}}, "only together with a model"),
    ],
)
def test_what_it_cannot_take_is_one_sentence(model, records, more, why, tmp_path):
    with pytest.raises(ExhumeError, match=why):
        exhume.audit(model, records, tmp_path / "run", **more)
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_parameter_that_cannot_be_drawn_anew_is_named(digits, tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.scale = network(), nn.Parameter(torch.ones(1))

        def forward(self, inputs):
            return self.scale * self.layers(inputs)

    with pytest.raises(ExhumeError, match="scale cannot be drawn anew"):
        exhume.audit(Scaled(), digits, tmp_path / "run", train={}, settings=SETTINGS)


def test_another_kind_of_fitted_model_is_not_audited(tmp_path):
    inputs = np.random.default_rng(0).normal(size=(40, 3))
    labels = (inputs[:, 0] > 0).astype(int)
    done = exhume.audit(LinearSVC().fit(inputs, labels), (inputs, labels), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert done.records == ()
