"""Sentence pairs in the two formats in use: tab-separated lines, and two parallel files."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from exhume.core.contract import ExhumeError
from exhume.data.archives import LARGEST, zip_members
from exhume.data.cache import Content

__all__ = ["TextPairs", "parallel", "tabbed", "tabbed_zip"]


@dataclass(frozen=True)
class TextPairs:
    """n sentences and their translations, line by line."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    languages: tuple[str, str]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: slice) -> TextPairs:
        return TextPairs(self.source[index], self.target[index], self.languages)

    def content(self) -> Content:
        tensors = {"source": self.source, "target": self.target}
        return Content(
            {
                name: torch.from_numpy(np.frombuffer("\n".join(lines).encode(), np.uint8).copy())
                for name, lines in tensors.items()
            },
            {"languages": " ".join(self.languages)},
        )

    @staticmethod
    def of(content: Content) -> TextPairs:
        """The inverse of `content`."""
        source, target = (
            tuple(content.tensors[name].numpy().tobytes().decode().split("\n"))
            for name in ("source", "target")
        )
        first, second = content.about["languages"].split(" ")
        return TextPairs(source, target, (first, second))


def tabbed(data: bytes, name: str, languages: tuple[str, str]) -> TextPairs:
    """Lines `sentence<tab>translation[<tab>attribution]`, as Tatoeba's exports have them."""
    source, target = [], []
    for number, line in enumerate(_lines(data, name), 1):
        columns = line.split("\t")
        if len(columns) < 2 or not columns[0].strip() or not columns[1].strip():
            raise ExhumeError(
                f"{name}: line {number} is not a sentence, a tab and its translation: {line[:40]!r}"
            )
        source.append(columns[0].strip())
        target.append(columns[1].strip())
    return TextPairs(tuple(source), tuple(target), languages)


def tabbed_zip(file: Path | io.BytesIO, name: str, languages: tuple[str, str]) -> TextPairs:
    """The one text file of a zip archive, apart from those that start with an underscore."""
    members = zip_members(file, name, _is_text)
    if len(members) != 1:
        found = ", ".join(sorted(members)) or "none"
        raise ExhumeError(f"{name}: one .txt file of sentence pairs is needed, found {found}")
    ((member, data),) = members.items()
    return tabbed(data, f"{name}: {member}", languages)


def parallel(folder: Path, part: str, languages: tuple[str, str] | None) -> TextPairs:
    """`train.en` and `train.de`, with or without .gz; `en` is the source where it is one of two."""
    pattern = re.compile(rf"{re.escape(part)}\.([a-z]{{2,3}})(\.gz)?")
    matches = (pattern.fullmatch(file.name) for file in sorted(folder.iterdir(), reverse=True))
    files = {match[1]: folder / match[0] for match in matches if match}
    chosen = languages or _two(folder, part, sorted(files))
    missing = [language for language in chosen if language not in files]
    if missing:
        raise ExhumeError(f"{folder}: {part}.{missing[0]} is missing, with or without .gz")
    first, second = (_side(files[language]) for language in chosen)
    if len(first) != len(second):
        raise ExhumeError(
            f"{folder}: {files[chosen[0]].name} has {len(first)} lines, "
            f"{files[chosen[1]].name} has {len(second)}"
        )
    return TextPairs(first, second, chosen)


def _two(folder: Path, part: str, found: Sequence[str]) -> tuple[str, str]:
    if len(found) != 2:
        names = ", ".join(f"{part}.{language}" for language in found) or "none"
        raise ExhumeError(
            f"{folder}: two files such as {part}.en and {part}.de are needed, found {names}"
        )
    first, second = sorted(found, key=lambda language: language != "en")
    return first, second


def _side(path: Path) -> tuple[str, ...]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ExhumeError(f"{path}: truncated or damaged file ({error})") from error
    if len(data) > LARGEST:
        raise ExhumeError(f"{path}: unpacks to more than {LARGEST:,} bytes")
    lines = tuple(line.strip() for line in _lines(data, str(path)))
    if "" in lines:
        raise ExhumeError(f"{path}: line {lines.index('') + 1} is empty")
    return lines


def _lines(data: bytes, name: str) -> list[str]:
    """Split at line ends only: inside a sentence Unicode has other separators."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ExhumeError(f"{name}: not a text file in UTF-8 ({error})") from error
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if lines == [""]:
        raise ExhumeError(f"{name}: holds no sentences")
    return lines


def _is_text(member: str) -> bool:
    name = PurePosixPath(member).name
    hidden = name.startswith(("_", ".")) or member.startswith("__MACOSX")
    return name.endswith(".txt") and not hidden
