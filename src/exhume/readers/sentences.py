"""Sentence pairs: read in the two formats in use, made up, and as token numbers for a translator.

The formats are tab-separated lines, and two parallel files.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.split.seq2seq import END, PADDING, SPECIAL, START, UNKNOWN
from exhume.store.cache import Content
from exhume.store.download import LARGEST, zip_members


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
        names = ", ".join(sorted(members)) or "none"
        raise ExhumeError(f"{name}: one .txt file of sentence pairs is needed, found {names}")
    ((member, data),) = members.items()
    return tabbed(data, f"{name}: {member}", languages)


def parallel(folder: Path) -> TextPairs:
    """`train.en` and one such as `train.de`, with or without .gz."""
    pattern = re.compile(r"train\.([a-z]{2,3})(\.gz)?")
    matches = (pattern.fullmatch(file.name) for file in sorted(folder.iterdir(), reverse=True))
    files = {match[1]: folder / match[0] for match in matches if match}
    languages = sorted(files, key=lambda language: (language != "en", language))
    if len(languages) != 2:
        names = ", ".join(f"train.{language}" for language in languages) or "none"
        raise ExhumeError(
            f"{folder}: two files such as train.en and train.de are needed, found {names}"
        )
    first, second = (_side(files[language]) for language in languages)
    if len(first) != len(second):
        counts = (f"{files[languages[i]].name} has {len(s)}" for i, s in enumerate((first, second)))
        raise ExhumeError(f"{folder}: {' lines, '.join(counts)}")
    return TextPairs(first, second, (languages[0], languages[1]))


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


# Of a made-up language: quick to learn, for tests and for trying things out


def synthetic_pairs(count: int, *, words: int, length: int, key: Key) -> TextPairs:
    """Chains of words, each drawn by the one before it; a translation replaces them word by word.

    A word is followed by some words much more often than by others (Zipf's law, in an order of its own).
    """
    if count < 1 or words < 2 or length < 3:
        raise ExhumeError(f"count, words, length: at least 1, 2, 3: {count}, {words}, {length}")
    order = key.fold("language").generator()
    shares = 1 / torch.arange(1, words + 1).double() ** 1.5
    follow = torch.stack([shares[torch.randperm(words, generator=order)] for _ in range(words + 1)])
    draw = key.fold("sentences").generator()
    lengths = torch.randint(3, length + 1, (count,), generator=draw)
    at = torch.full((count,), words)  # the start of a sentence
    chain = []
    for _ in range(length):
        at = torch.multinomial(follow[at], 1, generator=draw)[:, 0]
        chain.append(at)
    rows = torch.stack(chain, 1).tolist()
    sentences = [row[:n] for row, n in zip(rows, lengths.tolist(), strict=True)]
    return TextPairs(
        tuple(" ".join(f"a{word}" for word in sentence) for sentence in sentences),
        tuple(" ".join(f"b{word}" for word in sentence) for sentence in sentences),
        ("aa", "bb"),
    )


# As token numbers


_WORD = re.compile(r"\w+(?:'\w+)?|[.,!?;:]")


@dataclass(frozen=True, eq=False)
class PairCorpus:
    """n pairs of short sentences, all different on the first side, in random order."""

    source: Records  # (n, l) token numbers as floats
    target: Tensor  # (n, l + 2) from START to END
    source_words: tuple[str, ...]  # by token number
    target_words: tuple[str, ...]
    references: tuple[str, ...]  # the translations in all their words
    languages: tuple[str, str]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, part: slice) -> PairCorpus:
        return replace(
            self,
            source=self.source[part],
            target=self.target[part],
            references=self.references[part],
        )

    def deal(self, *sizes: int) -> list[PairCorpus]:
        """Consecutive parts of these sizes; no pair is in two of them."""
        if sum(sizes) > len(self):
            raise ExhumeError(
                f"pairs: {sum(sizes)} needed ({' + '.join(map(str, sizes))}), {len(self)} available"
            )
        ends = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
        return [self[start:stop] for start, stop in pairwise(ends)]


def pair_corpus(pairs: TextPairs, *, length: int, vocabulary: int, key: Key) -> PairCorpus:
    """Pairs of at most `length` words and marks on either side; the rarest words are unknown."""
    if length < 1 or vocabulary <= len(SPECIAL):
        raise ExhumeError(
            f"length, vocabulary: at least 1 and {len(SPECIAL) + 1} are needed, "
            f"got {length} and {vocabulary}"
        )
    different = {
        tuple(_split(a)): _split(b) for a, b in zip(pairs.source, pairs.target, strict=True)
    }
    short = [(list(a), b) for a, b in different.items() if 0 < len(a) <= length >= len(b) > 0]
    if not short:
        raise ExhumeError(f"pairs: none of {len(pairs)} has 1 to {length} words on both sides")
    order = torch.randperm(len(short), generator=key.generator()).tolist()
    source, target = [short[i][0] for i in order], [short[i][1] for i in order]
    source_words, target_words = (_frequent(side, vocabulary) for side in (source, target))
    inputs = _numbered(source, source_words, length).float()
    ended = _numbered(
        [[SPECIAL[START], *words, SPECIAL[END]] for words in target], target_words, length + 2
    )
    return PairCorpus(
        Records(inputs, torch.zeros(len(inputs), dtype=torch.long), ("sentence",)),
        ended.float(),
        source_words,
        target_words,
        tuple(" ".join(words) for words in target),
        pairs.languages,
    )


def _split(sentence: str) -> list[str]:
    return _WORD.findall(sentence.lower())


def _frequent(sentences: list[list[str]], vocabulary: int) -> tuple[str, ...]:
    counts = Counter(word for words in sentences for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (*SPECIAL, *ranked[: vocabulary - len(SPECIAL)])


def _numbered(sentences: list[list[str]], words: tuple[str, ...], length: int) -> Tensor:
    number = {word: place for place, word in enumerate(words)}
    rows = torch.full((len(sentences), length), PADDING)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = torch.tensor([number.get(word, UNKNOWN) for word in sentence])
    return rows
