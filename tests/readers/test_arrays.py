from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from planted_data import says

from exhume.readers import arrays, load


def saved(path: Path, **named: object) -> Path:
    np.savez(path / "set.npz", **named)  # type: ignore[arg-type]
    return path / "set.npz"


@pytest.mark.parametrize(("x", "y"), [("x", "y"), ("inputs", "labels"), ("images", "labels")])
def test_uint8_layouts_agree(tmp_path: Path, rng: np.random.Generator, x: str, y: str) -> None:
    images = rng.integers(0, 256, (6, 3, 5, 4)).astype(np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2])
    first = load(saved(tmp_path, **{x: images, y: labels}))
    last = load(saved(tmp_path, **{x: images.transpose(0, 2, 3, 1), y: labels}))
    assert np.array_equal((first.inputs * 255).round().numpy(), images)
    assert torch.equal(first.inputs, last.inputs)
    assert first.labels.tolist() == labels.tolist()
    assert first.classes == ("0", "1", "2")


def test_grey_without_channels(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.random((4, 5, 6))
    records = load(saved(tmp_path, x=values, y=np.zeros(4, int)))
    assert records.inputs.dtype == torch.float32
    assert np.allclose(records.inputs[:, 0].numpy(), values)


@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int32, np.uint8, bool])
def test_vectors_keep_their_values(tmp_path: Path, kind: type) -> None:
    values = np.array([[0, 1, 5], [7, 0, 200]]).astype(kind)
    records = load(saved(tmp_path, x=values, y=[0, 1]))
    assert records.inputs.dtype == torch.float32
    assert np.array_equal(records.inputs.numpy(), values.astype(np.float32))


def test_train_and_test_parts_are_joined(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        x_train=np.zeros((2, 4, 4), np.uint8),
        y_train=np.array([[0], [1]]),
        x_test=np.full((1, 4, 4), 255, np.uint8),
        y_test=np.array([[2]]),
    )
    records = load(path)
    assert records.inputs.mean((1, 2, 3)).tolist() == [0, 0, 1]
    assert records.labels.tolist() == [0, 1, 2]


def test_class_names(tmp_path: Path) -> None:
    records = load(saved(tmp_path, x=np.eye(2), y=[0.0, 1.0], classes=["cat", "dog", "none"]))
    assert records.classes == ("cat", "dog", "none")


IMAGES = np.zeros((3, 4, 4), np.uint8)
NAN = np.array([[0.0], [np.nan], [1.0]])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"a": IMAGES, "b": [0, 1, 2]}, "holds the arrays a, b; needed is x, inputs, images"),
        ({"x": IMAGES}, "holds the arrays x; needed is y, labels"),
        ({}, "holds the arrays none"),
        ({"x": IMAGES, "y": [0, 1]}, "3 inputs but 2 labels"),
        ({"x": NAN, "y": [0, 1, 2]}, "x holds NaN or infinity, first in record 1"),
        ({"x": IMAGES + np.inf, "y": [0, 1, 2]}, "x holds NaN or infinity, first in record 0"),
        ({"x": NAN[:1] + 1e300, "y": [0]}, "x holds NaN or infinity"),
        ({"x": IMAGES, "y": [0, 1, 0.5]}, "y holds labels that are not whole numbers (float64)"),
        ({"x": IMAGES, "y": [0, 1, np.nan]}, "y holds labels that are not whole numbers"),
        ({"x": IMAGES, "y": ["a", "b", "c"]}, "y holds labels that are not whole numbers"),
        ({"x": IMAGES, "y": [0, 1, -2]}, "y holds the negative label -2"),
        ({"x": IMAGES, "y": [0, 1, 10**9]}, "y holds the label 1000000000; labels stay below"),
        ({"x": IMAGES, "y": np.eye(3)}, "y has shape (3, 3); legal is one label per record"),
        (
            {"x": IMAGES - 0.5, "y": [0, 1, 2]},
            "x holds float images from -0.5 to -0.5; legal is [0,",
        ),
        ({"x": IMAGES + 2.0, "y": [0, 1, 2]}, "x holds float images from 2 to 2"),
        ({"x": IMAGES.astype(int), "y": [0, 1, 2]}, "images of int64; legal are uint8 and float"),
        ({"x": IMAGES.astype(str), "y": [0, 1, 2]}, "legal are numbers"),
        ({"x": np.zeros((2, 5, 4, 4)), "y": [0, 1]}, "no channels of size 1 or 3"),
        ({"x": np.zeros((2, 3, 4, 3)), "y": [0, 1]}, "both axis 1 and axis 3 could be channels"),
        ({"x": np.zeros((2, 3, 4, 4, 4)), "y": [0, 1]}, "5 axes"),
        ({"x": np.zeros(2), "y": [0, 1]}, "1 axes"),
        ({"x": np.zeros((0, 4)), "y": np.zeros(0)}, "which holds no records"),
        ({"x": np.float64(1), "y": [0]}, "shapes do not fit: x ()"),
        ({"x": IMAGES, "y": [0, 1, 2], "classes": ["a"]}, "legal is a list of at least 3 texts"),
    ],
)
def test_what_is_refused(tmp_path: Path, named: dict[str, object], message: str) -> None:
    path = saved(tmp_path, **named)
    text = says(lambda: load(path))
    assert text.startswith(f"{path}: ")
    assert message in text


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    path = saved(tmp_path, x_train=IMAGES, x_test=IMAGES[:, 1:], y_train=[0], y_test=[0])
    assert "shapes do not fit: x_train (3, 4, 4), x_test (3, 3, 4)" in says(lambda: load(path))


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.array([{"a": 1}], dtype=object), y=[0])
    assert "holds pickled Python objects, which are never loaded" in says(lambda: load(path))


def test_bare_pickle_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    path.write_bytes(b"\x80\x04]\x94.")
    assert "pickled" in says(lambda: load(path))


def test_bare_array(tmp_path: Path) -> None:
    with (tmp_path / "set.npz").open("wb") as file:
        np.save(file, IMAGES)
    assert "one bare array" in says(lambda: load(tmp_path / "set.npz"))


@pytest.mark.parametrize("kept", [0, 0.3, 0.95])
def test_truncated(tmp_path: Path, rng: np.random.Generator, kept: float) -> None:
    path = saved(tmp_path, x=rng.random((20, 9)), y=np.zeros(20, int))
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    assert "truncated or damaged .npz file" in says(lambda: arrays.npz(path))


def test_damaged_member(tmp_path: Path, rng: np.random.Generator) -> None:
    path = saved(tmp_path, x=rng.random((20, 9)), y=np.zeros(20, int))
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    assert "truncated or damaged .npz file" in says(lambda: arrays.npz(path))


def test_more_than_the_memory_is_refused_unread(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "s.npz", x=np.zeros((500, 2000)), y=np.zeros(500, int))
    assert (tmp_path / "s.npz").stat().st_size < 20_000
    monkeypatch.setattr("os.sysconf", lambda name: 1000)
    assert "its arrays need 12.0 MB" in says(lambda: load(tmp_path / "s.npz"))


def test_ten_gigabytes_of_nothing(tmp_path):
    (tmp_path / "s.npz").write_bytes(b"")
    os.truncate(tmp_path / "s.npz", 10 << 30)  # sparse
    assert "s.npz: " in says(lambda: load(tmp_path / "s.npz"))


def test_what_is_wrong_with_the_labels_is_said_before_the_inputs_are_unpacked(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 1000), np.float32), y=np.full(40, -3))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[5000:5400] = b"\1" * 400  # in x: its checksum fails once it is read to its end
    (tmp_path / "a.npz").write_bytes(content)
    assert "holds the negative label -3" in says(lambda: load(str(tmp_path / "a.npz")))
