"""One door to all records: a name, a `name:path`, a path whose format is recognised, the user's own code.

mnist                     a named set; mnist:folder is the user's copy of it
photos/                   a folder of images, one sub-folder a class; idx files; binary CIFAR
saved/, saved/:test       a Hugging Face datasets folder, or one split of it
records.npz               arrays x and y; or tokens and y
reviews.txt, texts/       texts: one a line with a tab and its label, or one a file
people.csv:income         a table; the label is the column named, else the last one
mine.py:dataset           a torch Dataset, or a function that returns one; package.module:dataset
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Progress, Records, silent
from exhume.core.notation import is_spec
from exhume.readers import images
from exhume.readers.arrays import named_dataset, npz
from exhume.readers.hub import hub_folder, is_hub_folder
from exhume.readers.image_sets import (
    CIFAR10,
    CIFAR100,
    celeba,
    has_annotations,
    has_idx,
    idx_folder,
    read_cifar,
    recognise_cifar,
)
from exhume.readers.images import Pixels
from exhume.readers.named import SETS, content_of
from exhume.readers.sentences import TextPairs, parallel, tabbed, tabbed_zip
from exhume.readers.table import table
from exhume.readers.tokens import TextReading, has_texts, text_file, text_folder
from exhume.settings.sources import FORMATS, PAIR_SETS, check_source, unknown_source

_AS_IT_IS = TextReading()


def load(
    source: str | Path,
    *,
    size: int | None = None,
    reading: TextReading = _AS_IT_IS,
    missing: str = "",
    progress: Progress = silent,
) -> Records:
    """Records of a named set (`mnist`), of the user's copy of one (`mnist:folder`), or of a path.

    A `Path` is always a path; a text that is also a name is the name (write `./mnist` otherwise).

    size: for image folders, crop to the centre square and resize to size x size; None: as they are.
    reading: of texts and tokens: vocabulary, length, padding; and whether a table's label is a number.
    missing: what missing numbers of a table become: `mean`, that of their column; else they are refused.
    """
    try:
        named = _table_named(source)
        if named is None and missing:
            raise ExhumeError(f"missing: given, but {str(source)[:300]} is no table")
        if named is None and reading.targets and Path(source).suffix != ".npz":
            raise ExhumeError(
                f"loss: mse needs numbers to predict: a .csv or .npz file, not {str(source)[:300]}"
            )
        if named is None:
            records = _load(source, size, reading, progress)
        else:
            _refuse_size(size, str(named[0]))
            records = table(*named, missing=missing, targets=reading.targets)
    except OSError as error:  # a folder that may not be listed, a file that vanished
        where = error.filename if error.filename not in (None, str(source)) else ""
        reason = f"{error.strerror or error}{f' ({where})' if where else ''}"
        raise ExhumeError(f"data: {str(source)[:300]}: {reason[:500]}") from error
    if replace(reading, targets=False) != _AS_IT_IS and records.vocabulary is None:
        raise ExhumeError(
            f"vocabulary, length, padding: given, but {str(source)[:300]} holds no texts and no tokens"
        )
    return records


def file_names(source: str | Path) -> list[str]:
    """The files of a folder of images, such as anna/03.png, in the order of their records; else none."""
    name, colon, rest = str(source).partition(":")
    copied = isinstance(source, str) and name == "faces" and colon
    path = Path(rest if copied else source).expanduser()
    named = isinstance(source, str) and name in SETS and not copied
    if named or not path.is_dir():
        return []
    others = (is_hub_folder, recognise_cifar, has_idx, has_annotations, has_texts)
    if not copied and any(reads(path) for reads in others):
        return []
    return images.files_in(path)


def _table_named(source: str | Path) -> tuple[Path, str | None] | None:
    """A table's file and label, if that is what is named."""
    text = str(source)
    if isinstance(source, str) and text.partition(":")[0] in SETS:
        return None
    path = Path(text).expanduser()
    if path.suffix == ".csv" and path.is_file():
        return path, None
    before, colon, after = text.rpartition(":")
    file = Path(before).expanduser()
    if not colon or file.suffix != ".csv" or path.exists():
        return None
    check_source(source)
    return file, after


def _load(
    source: str | Path,
    size: int | None,
    reading: TextReading,
    progress: Progress,
) -> Records:
    check_source(source)
    text = str(source)
    name, colon, rest = text.partition(":")
    if isinstance(source, str) and name in SETS:
        if SETS[name].kind != "images":
            raise ExhumeError(f"{name}: a set of {SETS[name].kind}, which `pairs` loads")
        if not colon:
            _refuse_size(size, text)
            return Pixels.of(content_of(name, progress=progress)).records()
        return _copy_of(name, Path(rest).expanduser(), size, progress)
    path = Path(text).expanduser()
    if not path.exists():
        before, colon, after = text.rpartition(":")
        place = Path(before).expanduser()
        if colon and place.is_dir() and is_hub_folder(place):
            return hub_folder(place, split=after, size=size, reading=reading, progress=progress)
        if is_spec(text):
            _refuse_size(size, text)
            return named_dataset(text, reading=reading, progress=progress)
        raise ExhumeError(f"no such file or folder: {text!r}; legal are {FORMATS}")
    return _folder(path, size, reading, progress) if path.is_dir() else _file(path, size, reading)


def _copy_of(name: str, path: Path, size: int | None, progress: Progress) -> Records:
    """The user's own copy of a named set, in the format its owners use."""
    if name == "celeba-hq" and path.is_dir():
        return celeba(path, size=size, progress=progress).records()
    if name == "faces" and path.is_dir():
        return images.folder(path, size=size, progress=progress).records()
    _refuse_size(size, f"{name}:{path}")
    if name == "mnist":
        records = npz(path) if path.is_file() else idx_folder(path, classes=10).records()
        if records.shape != SETS[name].shape:
            raise ExhumeError(
                f"{path}: records of shape {records.shape}, those of mnist are {SETS[name].shape}"
            )
        return records
    if name in ("cifar10", "cifar100"):
        return read_cifar(path, CIFAR10 if name == "cifar10" else CIFAR100).records()
    raise ExhumeError(f"{name}:{path}: not a copy of {name}; {SETS[name].by_hand}")


def _folder(path: Path, size: int | None, reading: TextReading, progress: Progress) -> Records:
    if not any(path.iterdir()):
        raise ExhumeError(f"{path}: an empty folder; legal are {FORMATS}")
    if is_hub_folder(path):
        return hub_folder(path, size=size, reading=reading, progress=progress)
    kind = recognise_cifar(path)
    if kind or has_idx(path):
        _refuse_size(size, str(path))
        return read_cifar(path, kind).records() if kind else idx_folder(path).records()
    if not has_annotations(path) and has_texts(path):
        _refuse_size(size, str(path))
        return text_folder(path, reading)
    reader = celeba if has_annotations(path) else images.folder
    return reader(path, size=size, progress=progress).records()


def _file(path: Path, size: int | None, reading: TextReading) -> Records:
    _refuse_size(size, str(path))
    if path.suffix == ".txt":
        return text_file(path, reading)
    if kind := recognise_cifar(path):
        return read_cifar(path, kind).records()
    if path.suffix == ".npz":
        return npz(path, reading)
    raise ExhumeError(f"{path}: not a file that can be loaded; legal are {FORMATS}")


def _refuse_size(size: int | None, source: str) -> None:
    if size is not None:
        raise ExhumeError(
            f"size: {size} given, but {source} has its own; only folders of images resize"
        )


# Sentence pairs: a name, a tab-separated file or its zip, or parallel files


_PAIR_FORMATS = (
    "a tab-separated .txt file, a .zip that holds one, a folder with train.en and train.de"
)


def pairs(
    source: str | Path,
    *,
    progress: Progress = silent,
) -> TextPairs:
    """Sentence pairs of a named set (`en-fr`) or of a path; of a folder, English to the other language."""
    text = str(source)
    if isinstance(source, str) and text in PAIR_SETS:
        return TextPairs.of(content_of(text, progress=progress))
    path = Path(text).expanduser()
    if path.is_dir():
        return parallel(path)
    if not path.exists():
        raise unknown_source(text, PAIR_SETS, _PAIR_FORMATS)
    columns = ("en", path.stem.split("-")[0])
    if path.suffix == ".zip":
        return tabbed_zip(path, str(path), columns)
    if path.suffix in (".txt", ".tsv"):
        try:
            return tabbed(path.read_bytes(), str(path), columns)
        except OSError as error:
            raise ExhumeError(f"{path}: cannot be read ({error})") from error
    raise ExhumeError(f"{path}: not a file of sentence pairs; legal are {_PAIR_FORMATS}")


# Who holds which records: the training set but one, the targets, the adversary's own, the rest.
# Disjoint by construction: one permutation of all records, cut into consecutive pieces.


@dataclass(frozen=True)
class Sizes:
    """How many records each role gets; each is 0 or more."""

    fixed: int = 0  # D-: training records the informed adversary knows
    target: int = 0  # records to be reconstructed
    shadow: int = 0  # records the adversary trains shadow models on
    public: int = 0  # further records of the same distribution
    test: int = 0  # held out, to measure the victim's accuracy

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0:
                raise ExhumeError(f"sizes: {field.name} is {value}, it must be 0 or more")

    @property
    def total(self) -> int:
        return sum(astuple(self))


@dataclass(frozen=True, eq=False)
class RecordsByRole:
    """One set of records, dealt out; no record is in two of them."""

    fixed: Records
    target: Records
    shadow: Records
    public: Records
    test: Records


def split(records: Records, sizes: Sizes, key: Key) -> RecordsByRole:
    """Deal records (n, *shape) out at random; the same key deals the same way."""
    if sizes.total > len(records):
        parts = " + ".join(f"{f.name} {getattr(sizes, f.name)}" for f in fields(sizes))
        raise ExhumeError(
            f"sizes: {sizes.total} records needed ({parts}), {len(records)} available"
        )
    return RecordsByRole(*(records[piece] for piece in places(len(records), sizes, key)))


def places(count: int, sizes: Sizes, key: Key) -> tuple[Tensor, ...]:
    """Which of `count` records each role gets, in the order of `RecordsByRole`."""
    order = torch.randperm(count, generator=key.generator())
    return torch.split(order[: sizes.total], list(astuple(sizes)))
