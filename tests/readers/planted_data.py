"""Planted files in every format, small enough to write in a millisecond."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from exhume.core.contract import ExhumeError


def picture(path: Path, values: np.ndarray) -> Path:
    """Write (h, w) grey or (h, w, 3) colour values as an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)
    return path


def idx_bytes(values: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.astype(np.uint8).tobytes()


def idx_folder(
    path: Path, images: np.ndarray, labels: np.ndarray, train: int, packed: bool
) -> Path:
    """The four files of an MNIST-like set whose first records are for training."""
    path.mkdir(parents=True, exist_ok=True)
    ending, pack = (".gz", gzip.compress) if packed else ("", bytes)
    for part, rows in (("train", slice(0, train)), ("t10k", slice(train, None))):
        (path / f"{part}-images-idx3-ubyte{ending}").write_bytes(pack(idx_bytes(images[rows])))
        (path / f"{part}-labels-idx1-ubyte{ending}").write_bytes(pack(idx_bytes(labels[rows])))
    return path


def says(call: Callable[[], object]) -> str:
    """The one sentence with which a call fails."""
    with pytest.raises(ExhumeError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text
