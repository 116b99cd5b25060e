from __future__ import annotations

import io
import os
import pickle
import sys
import zipfile

import pytest
import torch
from sklearn.linear_model import Lasso, LogisticRegression, LogisticRegressionCV, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from exhume.attacks.informed.glm import GlmClosedForm
from exhume.core.contract import ExhumeError, Knowledge, NotApplicable
from exhume.readers import fitted as room
from exhume.readers.fitted import read_skops, release_of_fitted
from exhume.store.shards import NullStore

skops = pytest.importorskip(
    "skops.io", reason="skops is not installed: pip install 'exhume[skops]'"
)


def fitted(records, kind=LogisticRegression, **settings):
    return kind(**settings).fit(records.inputs.flatten(1).double().numpy(), records.labels.numpy())


def test_the_missing_record_of_a_saved_model_comes_back(tmp_path, make_records, key):
    records = make_records(40, (5,), 3, key)
    model = fitted(records, tol=1e-10, max_iter=10_000)
    skops.dump(model, tmp_path / "model.skops")
    for source in (model, tmp_path / "model.skops"):
        release, recipe = release_of_fitted(source, (5,))
        knowledge = Knowledge(architecture=recipe.architecture, recipe=recipe, fixed=records[1:])
        found = GlmClosedForm().prepare(knowledge, key=key, store=NullStore()).run(release)
        torch.testing.assert_close(
            found.candidates[0, 0].float(), records.inputs[0], atol=1e-3, rtol=0
        )
        assert int(found.labels[0, 0]) == int(records.labels[0])


def test_other_models_are_named(make_records, key):
    records = make_records(40, (5,), 2, key)
    for kind in (SGDClassifier, Lasso):
        with pytest.raises(NotApplicable, match=f"{kind.__name__}: only LogisticRegression"):
            release_of_fitted(fitted(records, kind), (5,))
    with pytest.raises(NotApplicable, match="LogisticRegressionCV: only"):
        release_of_fitted(LogisticRegressionCV(), (5,))
    with pytest.raises(ExhumeError, match="a Pipeline; pass its last step"):
        release_of_fitted(make_pipeline(LogisticRegression()), (5,))


def test_other_types_in_a_file_are_not_built(tmp_path):
    path = tmp_path / "model.skops"
    skops.dump(make_pipeline(FunctionTransformer(os.system), LogisticRegression()), path)
    with pytest.raises(ExhumeError, match="not scikit-learn's own and are not built: .*system"):
        read_skops(path)


def test_files_that_are_no_models(tmp_path, monkeypatch):
    with pytest.raises(ExhumeError, match="there is no file"):
        read_skops(tmp_path / "none.skops")
    pickled = tmp_path / "model.pkl"
    pickled.write_bytes(pickle.dumps(LogisticRegression()))
    with pytest.raises(ExhumeError, match="not a .skops file; pickles and joblib files run code"):
        read_skops(pickled)
    path = tmp_path / "model.skops"
    for content in (b"text", zipped({"other": b""}), zipped({"schema.json": b"{}"})):
        path.write_bytes(content)
        with pytest.raises(ExhumeError, match="is truncated or damaged"):
            read_skops(path)
    path.write_bytes(zipped({"schema.json": bytes(1000)}))
    monkeypatch.setattr(room, "_LARGEST", 999)
    with pytest.raises(ExhumeError, match="unpacks to 1,000 bytes, 999 are allowed"):
        read_skops(path)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(ExhumeError, match=r"pip install 'exhume\[skops\]'"):
        read_skops(path)


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()
