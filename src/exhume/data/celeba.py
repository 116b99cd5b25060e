"""CelebA and CelebA-HQ as their owners hand them out: aligned images and text files about them.

Looked for in the image folder and beside it, first match wins:

- `identity_CelebA.txt`, lines `000001.jpg 2880`: a class per person. Images numbered by CelebA-HQ
  are translated by `CelebA-HQ-to-CelebA-mapping.txt`, lines `idx orig_idx orig_file`.
- `list_attr_celeba.txt` (or .csv), `CelebAMask-HQ-attribute-anno.txt`: one attribute, -1 or 1.
- neither: a folder of images like any other.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from exhume.core.contract import ExhumeError, Progress, silent
from exhume.data.images import folder, images_in, natural, stack
from exhume.data.pixels import Pixels

__all__ = ["celeba", "has_annotations"]

_IDENTITY = "identity_CelebA.txt"
_MAPPING = "CelebA-HQ-to-CelebA-mapping.txt"
_ATTRIBUTES = ("list_attr_celeba.txt", "list_attr_celeba.csv", "CelebAMask-HQ-attribute-anno.txt")
_IMAGES = ("CelebA-HQ-img", "img_align_celeba", "images")


def has_annotations(path: Path) -> bool:
    """Whether a folder holds one of CelebA's own text files."""
    return path.is_dir() and any((path / name).is_file() for name in (_IDENTITY, *_ATTRIBUTES))


def celeba(
    path: Path,
    *,
    attribute: str | None = None,
    size: int | None = None,
    progress: Progress = silent,
) -> Pixels:
    """The images of a folder, labelled by identity or by an attribute.

    attribute: label by this one; None takes identities where they are known, else `Male`.
    size: crop each image to its centre square and resize it to size x size.
    """
    inside = [path / name for name in _IMAGES if (path / name).is_dir()]
    where = inside[0] if inside else path
    identity = _beside(where, (_IDENTITY,))
    attributes = _beside(where, _ATTRIBUTES)
    if attributes is None and attribute is not None:
        raise ExhumeError(f"attribute: {attribute!r} given, but {where} has no attribute file")
    if attributes is None and identity is None:
        return folder(where, size=size, progress=progress)
    files = images_in(where)
    if not files:
        raise ExhumeError(f"{where}: holds no images")
    if attributes is not None and (attribute is not None or identity is None):
        labels, classes = _by_attribute(files, attributes, attribute or "Male")
    elif identity is not None:
        labels, classes = _by_identity(files, identity, _beside(where, (_MAPPING,)))
    values = stack(files, size=size, progress=progress)
    return Pixels(values, torch.tensor(labels, dtype=torch.int64), classes)


def _beside(where: Path, names: Sequence[str]) -> Path | None:
    places = [place / name for place in (where, where.resolve().parent) for name in names]
    return next((place for place in places if place.is_file()), None)


def _by_identity(
    files: Sequence[Path], identity: Path, mapping: Path | None
) -> tuple[list[int], tuple[str, ...]]:
    people = {row[0]: row[1] for row in _rows(identity) if len(row) == 2}
    original = {row[0]: row[2] for row in _rows(mapping) if len(row) == 3} if mapping else {}
    named = [_of(people, original.get(file.stem, file.name), file, identity) for file in files]
    classes = tuple(sorted(set(named), key=natural))
    number = {person: index for index, person in enumerate(classes)}
    return [number[person] for person in named], classes


def _by_attribute(
    files: Sequence[Path], source: Path, attribute: str
) -> tuple[list[int], tuple[str, ...]]:
    lines = _rows(source)
    lines = lines[1:] if lines and len(lines[0]) == 1 else lines  # a first line may count the rest
    header = [name for name in lines[0] if name != "image_id"] if lines else []
    if attribute not in header:
        near = difflib.get_close_matches(attribute, header, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ExhumeError(f"attribute: {attribute!r} is not one of those in {source}{hint}")
    column = header.index(attribute) + 1
    values = {row[0]: row[column] for row in lines[1:] if len(row) == len(header) + 1}
    signs = [_of(values, file.name, file, source) for file in files]
    odd = next((sign for sign in signs if sign not in ("-1", "0", "1")), None)
    if odd is not None:
        raise ExhumeError(f"{source}: {attribute} has the value {odd!r}; legal are -1, 0 and 1")
    return [int(sign == "1") for sign in signs], (f"not {attribute}", attribute)


def _of(table: Mapping[str, str], name: str, file: Path, source: Path) -> str:
    if name not in table:
        raise ExhumeError(f"{source}: has no line for {file.name}")
    return table[name]


def _rows(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ExhumeError(f"{path}: not a text file in UTF-8 ({error})") from error
    return [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
