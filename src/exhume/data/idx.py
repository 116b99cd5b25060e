"""MNIST's own format: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the same for `t10k`.

An idx file is two zero bytes, a type (8: unsigned byte), the number of axes, each axis as a big
endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from exhume.core.contract import ExhumeError
from exhume.data.pixels import Pixels

__all__ = ["folder", "has_idx"]

_NAME = re.compile(r"(train|t10k)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_DEFLATE_MOST = 1040  # no deflate stream unpacks to more than about 1032 times its size

Bytes = NDArray[np.uint8]


def has_idx(path: Path) -> bool:
    """Whether a folder holds idx files by their usual names."""
    return path.is_dir() and bool(_files(path))


def folder(path: Path, classes: int | None = None) -> Pixels:
    """Training records, then test records; either part may be absent as a whole.

    classes: how many there are; None counts up to the largest label.
    """
    files = _files(path)
    if not files:
        raise ExhumeError(
            f"{path}: holds no idx files; needed are train-images-idx3-ubyte and "
            "train-labels-idx1-ubyte, with or without .gz"
        )
    there = {part for part, _ in files}
    parts = [_part(path, files, part) for part in ("train", "t10k") if part in there]
    if len({images.shape[1:] for images, _ in parts}) > 1:
        shapes = " and ".join(f"{i.shape[2]}x{i.shape[1]}" for i, _ in parts)
        raise ExhumeError(f"{path}: train and t10k images have different sizes, {shapes}")
    values = torch.from_numpy(np.concatenate([images for images, _ in parts])[:, None])
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]).astype(np.int64))
    if len(labels) == 0:
        raise ExhumeError(f"{path}: the idx files hold no records")
    largest = int(labels.max())
    if classes is not None and largest >= classes:
        raise ExhumeError(f"{path}: holds the label {largest}; labels stay below {classes}")
    return Pixels(values, labels, tuple(str(k) for k in range(classes or largest + 1)))


def _files(path: Path) -> dict[tuple[str, str], Path]:
    """(part, kind) to file; an unpacked file goes before its packed twin."""
    found = {}
    for file in sorted(path.iterdir(), reverse=True):
        if match := _NAME.fullmatch(file.name):
            found[match[1], match[2]] = file
    return found


def _part(path: Path, files: dict[tuple[str, str], Path], part: str) -> tuple[Bytes, Bytes]:
    for kind, axes in (("images", 3), ("labels", 1)):
        if (part, kind) not in files:
            raise ExhumeError(f"{path}: {part}-{kind}-idx{axes}-ubyte is missing")
    images, labels = (
        _read(files[part, kind], axes) for kind, axes in (("images", 3), ("labels", 1))
    )
    if len(images) != len(labels):
        raise ExhumeError(f"{path}: {len(images)} {part} images but {len(labels)} labels")
    return images, labels


def _read(path: Path, axes: int) -> Bytes:
    """The values of one idx file, which has this many axes."""
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as stream:
            head = stream.read(4 + 4 * axes)
            if head[:4] != bytes((0, 0, 8, axes)) or len(head) != 4 + 4 * axes:
                raise ExhumeError(f"{path}: not an idx file of {axes} axes of unsigned bytes")
            shape = struct.unpack(f">{axes}I", head[4:])
            size = math.prod(shape)
            if size > path.stat().st_size * (_DEFLATE_MOST if packed else 1):
                raise ExhumeError(f"{path}: truncated, its header promises {size:,} bytes")
            body = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ExhumeError(f"{path}: truncated or damaged file ({error})") from error
    if len(body) != size:
        what = "truncated" if len(body) < size else "too long"
        raise ExhumeError(f"{path}: {what}, its header promises {size:,} bytes")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
