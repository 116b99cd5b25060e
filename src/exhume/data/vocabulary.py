"""A vocabulary in a file: which word each token number stands for.

words.txt        one word a line, numbered from 0
vocab.json       an object from words to numbers, or a list of words; a tokenizer.json of Hugging Face's too
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exhume.core.contract import ExhumeError, Vocabulary

__all__ = ["Dictionary", "dictionary_at"]

_PADDING = ("[pad]", "<pad>", "<padding>")
_UNKNOWN = ("[unk]", "<unk>", "<unknown>")
_MOST = 5_000_000  # words
_LARGEST = 1 << 28  # bytes


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
    try:
        if path.stat().st_size > _LARGEST:
            raise ExhumeError(f"vocabulary: {path} is larger than {_LARGEST >> 20} MiB")
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text) if path.suffix == ".json" else None
    except (OSError, ValueError, RecursionError) as error:
        raise ExhumeError(f"vocabulary: {path} cannot be read ({error})") from error
    if content is None:
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        content = [] if lines == [""] else lines
    return _checked(_numbers(content, path), path)


def _numbers(content: object, path: Path) -> dict[str, int]:
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
    if low < 0 or high >= _MOST:
        raise ExhumeError(
            f"vocabulary: {path} has the numbers {low} to {high}; legal are 0 to {_MOST - 1}"
        )
    words = [f"<{number}>" for number in range(high + 1)]
    for word, number in numbers.items():
        words[number] = word
    if len(set(numbers.values())) < len(numbers):
        raise ExhumeError(f"vocabulary: {path} gives one number to two words")
    lowered = {word.lower(): number for word, number in numbers.items()}
    padding, unknown = (
        next((lowered[name] for name in names if name in lowered), None)
        for names in (_PADDING, _UNKNOWN)
    )
    return Dictionary(tuple(words), numbers, padding, unknown)
