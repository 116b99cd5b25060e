from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from planted_data import says

from exhume.core.contract import Vocabulary
from exhume.readers import TextReading, load

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'exhume[hf]'")

VALUE = {"dtype": "int64", "_type": "Value"}
TEXT = {"dtype": "string", "_type": "Value"}
KINDS = {"names": ["cat", "dog"], "_type": "ClassLabel"}


def save(folder, columns, features, pieces=1):
    """What `Dataset.save_to_disk` of datasets 4 leaves, in so many files."""
    folder.mkdir(parents=True)
    table = arrow.table(columns)
    names = [f"data-{i:05}-of-{pieces:05}.arrow" for i in range(pieces)]
    for index, name in enumerate(names):
        rows = table.slice(*((0, 1) if index == 0 else (1,))) if pieces > 1 else table
        with arrow.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(rows)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": n} for n in names]})
    )
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def png(values):
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(values, np.uint8)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


IMAGES = [png(np.full((2, 3), 51 * i)) for i in range(3)]
PICTURES = {"image": {"_type": "Image"}, "label": KINDS}


def test_images_with_named_classes(tmp_path):
    save(tmp_path / "d", {"image": IMAGES, "label": [0, 1, 1]}, PICTURES, pieces=2)
    records = load(tmp_path / "d")
    assert records.shape == (1, 2, 3)
    assert (records.classes, records.labels.tolist()) == (("cat", "dog"), [0, 1, 1])
    assert torch.equal(records.inputs[:, 0, 0, 0], torch.tensor([0, 51, 102]) / 255)
    assert load(tmp_path / "d", size=2).shape == (1, 2, 2)


def test_splits(tmp_path):
    for name, count in (("train", 3), ("test", 2)):
        save(tmp_path / "d" / name, {"image": IMAGES[:count], "label": [0, 1, 1][:count]}, PICTURES)
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert [len(load(f"{tmp_path / 'd'}{part}")) for part in ("", ":train", ":test")] == [3, 3, 2]
    assert "no split 'other'; there are train, test, name one as d:SPLIT" in says(
        lambda: load(f"{tmp_path / 'd'}:other")
    )
    assert "holds no splits, 'x' was asked" in says(lambda: load(f"{tmp_path / 'd' / 'train'}:x"))


def test_tokens_and_tables(tmp_path):
    tokens = {"text": ["a", "b"], "input_ids": [[1, 2, 3], [4, 5, 6]], "labels": [5, 8]}
    features = {"text": TEXT, "input_ids": {"feature": VALUE, "_type": "List"}, "labels": VALUE}
    records = load(save(tmp_path / "t", tokens, features))
    assert records.inputs.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (records.inputs.dtype, records.vocabulary) == (torch.int64, Vocabulary())
    assert (records.labels.tolist(), records.classes) == ([0, 1], ("5", "8"))
    columns = {"age": [30, 40], "name": ["a", "b"], "pay": [1.5, 2.5], "y": [1, 0]}
    features = {"age": VALUE, "name": TEXT, "pay": {**VALUE, "dtype": "float64"}, "y": VALUE}
    table = load(save(tmp_path / "c", columns, features))
    assert table.inputs.tolist() == [[30, 1.5], [40, 2.5]]


def test_texts(tmp_path):
    columns = {"sentence": ["One, two.", "two"], "label": [1, 0]}
    saved = save(tmp_path / "s", columns, {"sentence": TEXT, "label": KINDS})
    records = load(saved)
    assert records.inputs.tolist() == [[4, 2, 1, 3], [1, 0, 0, 0]]
    assert records.vocabulary == Vocabulary(("<padding>", "two", ",", ".", "one"), 0, given=False)
    assert (records.classes, records.labels.tolist()) == (("cat", "dog"), [1, 0])
    assert load(saved, reading=TextReading(length=2)).inputs.tolist() == [[4, 2], [1, 0]]


@pytest.mark.parametrize(
    ("columns", "features", "message"),
    [
        ({"x": [[1.0]]}, {"x": VALUE}, "no column of labels among x"),
        (
            {"words": ["a"], "y": [0]},
            {"words": TEXT, "y": VALUE},
            "texts are called text or sentence, token numbers input_ids",
        ),
        (
            {"input_ids": [[1], [1, 2]], "y": [0, 1]},
            {"input_ids": VALUE, "y": VALUE},
            "input_ids: record 0 has 1 tokens, the longest has 2; say with padding",
        ),
        (
            {"input_ids": [[1.5], [1.0]], "y": [0, 1]},
            {"input_ids": VALUE, "y": VALUE},
            "input_ids: record 0 is of float64; tokens are whole numbers",
        ),
        (
            {"text": ["a", None], "y": [0, 1]},
            {"text": TEXT, "y": VALUE},
            "text: record 1 is missing",
        ),
        (
            {"x": [[1], [1, 2]], "y": [0, 1]},
            {"x": VALUE, "y": VALUE},
            "x: record 1 has 2 numbers, record 0 has 1; bring all to one size",
        ),
        ({"x": [[1], None], "y": [0, 1]}, {"x": VALUE, "y": VALUE}, "x: record 1 is missing"),
        (
            {"x": [[1.0], [float("nan")]], "y": [0, 1]},
            {"x": VALUE, "y": VALUE},
            "x holds NaN or infinity, first in record 1",
        ),
        ({"x": [[1], [2]], "label": [0, 2]}, {"x": VALUE, "label": KINDS}, "record 1 has label 2"),
        ({"x": [[1], [2]], "label": [0, -1]}, {"x": VALUE, "label": KINDS}, "negative label -1"),
        ({"image": [*IMAGES[:1], png(np.zeros((4, 4)))], "label": [0, 1]}, PICTURES, "sizes: "),
        (
            {"image": [{"bytes": None, "path": "/x.png"}], "label": [0]},
            PICTURES,
            "image 0 is kept outside the folder",
        ),
        ({"image": [{"bytes": b"GIF8", "path": ""}], "label": [0]}, PICTURES, "unreadable or tr"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, columns, features, message):
    folder = save(tmp_path / "d", columns, features)
    assert message in says(lambda: load(folder))


def test_damage(tmp_path):
    folder = save(tmp_path / "d", {"x": [[1]], "y": [0]}, {"x": VALUE, "y": VALUE})
    assert "size: 4 given, but" in says(lambda: load(folder, size=4))
    data = folder / "data-00000-of-00001.arrow"
    data.write_bytes(data.read_bytes()[:200])
    assert "missing, truncated or damaged" in says(lambda: load(folder))
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../other.arrow"}]}')
    assert "its state.json names no data file in this folder" in says(lambda: load(folder))
    for text in ('{"_data_files": true}', '{"_data_files": [1, {"name": "x"}]}', "{}"):
        (folder / "state.json").write_text(text)
        assert "its state.json names no data file in this folder" in says(lambda: load(folder))
    (folder / "state.json").write_text("[")
    assert "state.json: not readable as JSON" in says(lambda: load(folder))
    (folder / "state.json").write_text("[]")
    assert "must hold a JSON object" in says(lambda: load(folder))
    (folder / "dataset_dict.json").write_text('{"splits": [1]}')
    assert "it names no splits" in says(lambda: load(folder))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([1], "dataset_info.json: missing or damaged (it names no columns)"),
        ({"x": None, "y": VALUE}, "dataset_info.json: missing or damaged (it names no columns)"),
        ({"x": VALUE, "y": {**KINDS, "names": [1]}}, "the names of its classes are not a list"),
        ({"x": KINDS, "y": TEXT}, "no column of images, numbers or tokens among x, y"),
    ],
)
def test_damaged_descriptions(tmp_path, features, message):
    folder = save(tmp_path / "d", {"x": [[1]], "y": [0]}, features)
    assert message in says(lambda: load(folder))


def test_an_empty_set_and_a_missing_package(tmp_path, monkeypatch):
    empty = {"x": arrow.array([], arrow.list_(arrow.int64())), "y": arrow.array([], arrow.int64())}
    folder = save(tmp_path / "d", empty, {"x": VALUE, "y": VALUE})
    assert "holds no records" in says(lambda: load(folder))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "needs pyarrow: pip install 'exhume[hf]'" in says(lambda: load(folder))
