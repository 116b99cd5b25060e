"""Token sequences as records: int64 (n, l), with what their numbers stand for.

reviews.txt      one text a line, then a tab and its label
texts/           a folder of .txt files, one sub-folder a class
records.npz      an array `tokens` (or `input_ids`) of whole numbers, and y

Numbers are taken as they are. Words are split at spaces and marks and looked up in the vocabulary, as they
are written or in small letters; a tokenizer that does otherwise has to be run beforehand. Without a
vocabulary words are numbered here, the most frequent first: such numbers fit no trained model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Records, Vocabulary
from exhume.core.files import json_at, text_at
from exhume.readers.images import SUFFIXES, files_below, folders_below, natural
from exhume.store.memory import check_memory

_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
_MOST = 1 << 24  # token numbers: beyond, float32 gradients could not carry them


@dataclass(frozen=True)
class TextReading:
    """How texts and token numbers become records; and the rows of a regression."""

    vocabulary: str = ""  # a file
    length: int = 0  # tokens of a record: longer ones are cut, shorter filled up; 0: the longest
    padding: int = -1  # number that fills up; -1: the vocabulary's, if it has one
    targets: bool = (
        False  # of a table or vectors: the label is a number, and becomes the row's last
    )

    def __post_init__(self) -> None:
        if self.length < 0 or self.padding < -1:
            raise ExhumeError(
                f"length, padding: at least 0 and -1 are needed, got {self.length} and {self.padding}"
            )

    def dictionary(self) -> Dictionary | None:
        return dictionary_at(self.vocabulary) if self.vocabulary else None


# Numbers


def tokens_of(rows: Any, reading: TextReading, where: str) -> tuple[Tensor, Vocabulary]:
    """(n, l) int64 from an array, or from a list of lists of whole numbers."""
    known, padding = reading.dictionary(), _padding(reading)
    vocabulary = known.vocabulary(padding) if known else Vocabulary((), padding)
    return _even([_row(row, i, where) for i, row in enumerate(rows)], vocabulary, reading, where)


def _padding(reading: TextReading) -> int | None:
    return None if reading.padding < 0 else reading.padding


def _row(row: Any, index: int, where: str) -> list[int]:
    values = np.asarray(row)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        kind = "no sequence" if values.ndim != 1 else f"of {values.dtype}"
        raise ExhumeError(
            f"{where}: record {index} is {kind}; tokens are whole numbers, one list a record"
        )
    found: list[int] = values.tolist()
    return found


def _even(
    rows: list[list[int]], vocabulary: Vocabulary, reading: TextReading, where: str
) -> tuple[Tensor, Vocabulary]:
    """Sequences of one length, every number within the vocabulary."""
    if not rows:
        raise ExhumeError(f"{where} holds no records")
    _within(rows, vocabulary, where)
    longest = max(len(row) for row in rows)
    length = reading.length or longest
    if not length:
        raise ExhumeError(f"{where}: every record is empty")
    odd = next((i for i, row in enumerate(rows) if len(row) < length), None)
    if odd is not None and vocabulary.padding is None:
        other = f"{length} are asked for" if reading.length else f"the longest has {longest}"
        raise ExhumeError(
            f"{where}: record {odd} has {len(rows[odd])} tokens, {other}; say with padding which number "
            "fills up, or bring all to one length"
        )
    check_memory(16 * len(rows) * length, f"{where}: {len(rows)} records of {length} tokens")
    fill = vocabulary.padding or 0
    tokens = torch.full((len(rows), length), fill, dtype=torch.int64)
    for place, row in zip(tokens, rows, strict=True):
        cut = row[:length]
        place[: len(cut)] = torch.tensor(cut, dtype=torch.int64)
    return tokens, vocabulary


def _within(rows: list[list[int]], vocabulary: Vocabulary, where: str) -> None:
    most = len(vocabulary.words) or _MOST
    if vocabulary.padding is not None and vocabulary.padding >= most:
        raise ExhumeError(f"padding: {vocabulary.padding} given, numbers go from 0 to {most - 1}")
    for index, row in enumerate(rows):
        odd = next((number for number in row if not 0 <= number < most), None)
        if odd is not None:
            raise ExhumeError(
                f"{where}: record {index} has the token {odd}; the vocabulary goes from 0 to {most - 1}"
            )


# Words


def tokenised(texts: Sequence[str], reading: TextReading, where: str) -> tuple[Tensor, Vocabulary]:
    """(n, l) int64 of texts, by the vocabulary of a file or by one that is made of them."""
    known = reading.dictionary()
    split = [_WORD.findall(text) for text in texts]
    if known is None:
        return _numbered([[word.lower() for word in words] for words in split], reading, where)
    rows = [[_number(w, known, i, where) for w in words] for i, words in enumerate(split)]
    return _even(rows, known.vocabulary(_padding(reading)), reading, where)


def _number(word: str, known: Dictionary, index: int, where: str) -> int:
    for form in (word, word.lower()):
        if form in known.numbers:
            return known.numbers[form]
    if known.unknown is None:
        raise ExhumeError(
            f"{where}: record {index} has the word {word[:40]!r}, which the vocabulary lacks; nor has "
            "it <unk>"
        )
    return known.unknown


def _numbered(
    split: list[list[str]], reading: TextReading, where: str
) -> tuple[Tensor, Vocabulary]:
    """Token numbers, the most frequent word first; 0 fills up."""
    if reading.padding > 0:
        raise ExhumeError(
            f"padding: {reading.padding} given without a vocabulary; words that are numbered here have 0"
        )
    counts = Counter(word for words in split for word in words)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: place for place, word in enumerate(order, start=1)}
    vocabulary = Vocabulary(("<padding>", *order), 0, given=False)
    return _even([[number[w] for w in words] for words in split], vocabulary, reading, where)


# Files


def text_file(path: Path, reading: TextReading) -> Records:
    """Lines `text<tab>label`, or lines without any tab: then all are of one class."""
    lines = [line for line in text_at(path).split("\n") if line.strip()]
    if not lines:
        raise ExhumeError(f"{path}: holds no text")
    parts = [line.rpartition("\t") for line in lines]
    bare = [not tab for _, tab, _ in parts]
    if any(bare) and not all(bare):
        odd = bare.index(not bare[0])
        raise ExhumeError(
            f"{path}: some texts have a tab and a label and some have not, first text {odd + 1}"
        )
    texts = lines if bare[0] else [text for text, _, _ in parts]
    labels = ["text"] * len(lines) if bare[0] else [label.strip() for _, _, label in parts]
    return _records(texts, labels, reading, str(path))


def text_folder(path: Path, reading: TextReading) -> Records:
    """Every .txt file is one record; the sub-folder is its class."""
    here, kinds = _texts_in(path), folders_below(path)
    groups = [(kind.name, _texts_in(kind)) for kind in kinds if _texts_in(kind)]
    if here and groups:
        raise ExhumeError(
            f"{path}: holds both texts ({here[0].name}) and folders ({groups[0][0]}); put every text into "
            "the folder of its class"
        )
    texts = [text_at(file) for _, files in groups for file in files]
    labels = [name for name, files in groups for _ in files]
    return _records(texts, labels, reading, str(path))


def has_texts(path: Path) -> bool:
    """A folder of folders of texts, and not of images."""
    kinds = folders_below(path)
    files = (file for folder in (path, *kinds) for file in folder.iterdir())
    if any(file.suffix.lower() in SUFFIXES for file in files):
        return False
    return any(_texts_in(kind) for kind in kinds)


def _records(texts: list[str], labels: list[str], reading: TextReading, where: str) -> Records:
    tokens, vocabulary = tokenised(texts, reading, where)
    classes = sorted(set(labels), key=natural)
    numbers = torch.tensor([classes.index(label) for label in labels])
    return Records(tokens, numbers, tuple(classes), vocabulary)


def _texts_in(path: Path) -> list[Path]:
    return [file for file in files_below(path) if file.suffix.lower() == ".txt"]


# A vocabulary in a file: which word each token number stands for.
#
# words.txt        one word a line, numbered from 0
# vocab.json       an object from words to numbers, or a list of words; a tokenizer.json of Hugging Face's too


_PADDING_WORDS = ("[pad]", "<pad>", "<padding>")
_UNKNOWN = ("[unk]", "<unk>", "<unknown>")
_MOST_WORDS = 5_000_000  # words


@dataclass(frozen=True)
class Dictionary:
    """Words to numbers, and back."""

    words: tuple[str, ...]  # by number; a number without a word is <number>
    numbers: Mapping[str, int]
    padding: int | None  # by its usual names
    unknown: int | None

    def vocabulary(self, padding: int | None) -> Vocabulary:
        return Vocabulary(self.words, self.padding if padding is None else padding)


def dictionary_at(file: str) -> Dictionary:
    path = Path(file).expanduser()
    if path.suffix == ".json":
        return _checked(_numbers_of_words(json_at(path, "vocabulary"), path), path)
    text = text_at(path, "vocabulary").removesuffix("\n")
    return _checked(_numbers_of_words(text.split("\n") if text else [], path), path)


def _numbers_of_words(content: object, path: Path) -> dict[str, int]:
    """Words to numbers, from what the file holds."""
    for inside in ("model", "vocab"):  # tokenizer.json
        if isinstance(content, dict) and isinstance(content.get(inside), dict | list):
            content = content[inside]
    if isinstance(content, list) and all(isinstance(word, str) for word in content):
        found = {word: number for number, word in enumerate(content)}
        if len(found) < len(content):
            twice = next(w for n, w in enumerate(content) if found[w] != n)
            raise ExhumeError(f"vocabulary: {path} has the word {twice[:40]!r} twice")
        return found
    if isinstance(content, dict) and all(type(number) is int for number in content.values()):
        return content
    raise ExhumeError(
        f"vocabulary: {path} holds no words; legal are one word a line, a JSON list of words, and a JSON "
        "object from words to whole numbers"
    )


def _checked(numbers: dict[str, int], path: Path) -> Dictionary:
    if not numbers:
        raise ExhumeError(f"vocabulary: {path} is empty")
    low, high = min(numbers.values()), max(numbers.values())
    if low < 0 or high >= _MOST_WORDS:
        raise ExhumeError(
            f"vocabulary: {path} has the numbers {low} to {high}; legal are 0 to {_MOST_WORDS - 1}"
        )
    words = [f"<{number}>" for number in range(high + 1)]
    for word, number in numbers.items():
        words[number] = word
    if len(set(numbers.values())) < len(numbers):
        raise ExhumeError(f"vocabulary: {path} gives one number to two words")
    lowered = {word.lower(): number for word, number in numbers.items()}
    padding, unknown = (
        next((lowered[name] for name in names if name in lowered), None)
        for names in (_PADDING_WORDS, _UNKNOWN)
    )
    return Dictionary(tuple(words), numbers, padding, unknown)
