from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from planted_data import idx_bytes, idx_folder, says

from exhume.readers import load

IMAGES = np.arange(5 * 28 * 28).reshape(5, 28, 28) % 251
LABELS = np.array([3, 1, 4, 1, 5])


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["", "mnist:"])
def test_train_then_test(tmp_path: Path, packed: bool, name: str) -> None:
    folder = idx_folder(tmp_path / "raw", IMAGES, LABELS, train=3, packed=packed)
    records = load(f"{name}{folder}")
    assert np.array_equal((records.inputs[:, 0] * 255).round().numpy(), IMAGES)
    assert records.labels.tolist() == LABELS.tolist()
    assert len(records.classes) == (10 if name else 6)


def test_one_part_is_enough(tmp_path: Path) -> None:
    idx_folder(tmp_path, IMAGES, LABELS, train=3, packed=False)
    for file in tmp_path.glob("t10k*"):
        file.unlink()
    assert load(tmp_path).labels.tolist() == [3, 1, 4]


def test_unpacked_goes_before_packed(tmp_path: Path) -> None:
    idx_folder(tmp_path, IMAGES, LABELS, train=3, packed=True)
    idx_folder(tmp_path, IMAGES, LABELS[::-1], train=3, packed=False)
    assert load(tmp_path).labels.tolist() == LABELS[::-1].tolist()


def refused(tmp_path: Path, file: str, data: bytes, packed: bool = False) -> str:
    folder = idx_folder(tmp_path / "raw", IMAGES, LABELS, train=3, packed=packed)
    (folder / file).write_bytes(data)
    return says(lambda: load(f"mnist:{folder}"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an idx file of 1 axes"),
        (b"hello world", "not an idx file of 1 axes"),
        (idx_bytes(LABELS[:3])[:-1], "truncated, its header promises 3 bytes"),
        (idx_bytes(LABELS[:3]) + b"x", "too long, its header promises 3 bytes"),
        (b"\0\0\x08\x01\xff\xff\xff\xff\0", "truncated, its header promises 4,294,967,295 bytes"),
        (idx_bytes(LABELS[:2]), "3 train images but 2 labels"),
        (idx_bytes(np.array([1, 2, 10])), "holds the label 10; labels stay below 10"),
    ],
)
def test_bad_labels_file(tmp_path: Path, data: bytes, message: str) -> None:
    assert message in refused(tmp_path, "train-labels-idx1-ubyte", data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(idx_bytes(IMAGES[:3]), mtime=0)[:-20], "truncated or damaged file"),
        (b"not gzip", "truncated or damaged file"),
        (gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12, mtime=0), "truncated, its header promises"),
        (
            gzip.compress(idx_bytes(IMAGES[:3])[:-5], mtime=0),
            "truncated, its header promises 2,352 bytes",
        ),
    ],
)
def test_bad_packed_images(tmp_path: Path, data: bytes, message: str) -> None:
    text = refused(tmp_path, "train-images-idx3-ubyte.gz", data, packed=True)
    assert message in text
    assert "train-images-idx3-ubyte.gz" in text


def test_missing_half(tmp_path: Path) -> None:
    idx_folder(tmp_path, IMAGES, LABELS, train=3, packed=False)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert says(lambda: load(tmp_path)) == f"{tmp_path}: t10k-labels-idx1-ubyte is missing"


def test_no_idx_files(tmp_path: Path) -> None:
    assert "holds no idx files" in says(lambda: load(f"mnist:{tmp_path}"))


def test_no_records(tmp_path: Path) -> None:
    idx_folder(tmp_path, IMAGES[:0], LABELS[:0], train=0, packed=False)
    assert "the idx files hold no records" in says(lambda: load(tmp_path))


def test_parts_of_different_sizes(tmp_path: Path) -> None:
    idx_folder(tmp_path, IMAGES, LABELS, train=3, packed=False)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(IMAGES[3:, 1:]))
    assert "different sizes, 28x28 and 28x27" in says(lambda: load(tmp_path))


def test_other_shape_is_not_mnist(tmp_path: Path) -> None:
    idx_folder(tmp_path, IMAGES[:, 1:], LABELS, train=3, packed=False)
    text = says(lambda: load(f"mnist:{tmp_path}"))
    assert "records of shape (1, 27, 28), those of mnist are (1, 28, 28)" in text


def test_mnist_as_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x=IMAGES.astype(np.uint8), y=LABELS)
    assert load(f"mnist:{tmp_path / 'mnist.npz'}").shape == (1, 28, 28)
