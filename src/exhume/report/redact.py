"""What a page that leaves the house must not say: where the user's files lie and whose they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["paths_in", "redacted"]

STARTS_AS_PATH = re.compile(r"(?:~\w*|\.{1,2}|[A-Za-z]:|file://)?[/\\]")
PATH_IN_TEXT = re.compile(
    r"""(?<![\w/\\])(?:~\w*|\.{1,2}|[A-Za-z]:|file://)?[/\\](?:[^\s/\\"'<>|,;()]+[/\\])+[^\s/\\"'<>|,;()]*"""
)
PERSONAL = {"host", "hostname", "node", "user", "username"}


def paths_in(value: Any) -> Iterator[str]:
    """Every string in a configuration that reads as a path, also relative or with spaces."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from paths_in(item)
    elif isinstance(value, str) and (
        STARTS_AS_PATH.match(value) or (re.search(r"[/\\]", value) and not re.search(r"\s", value))
    ):
        yield value


def redacted(value: Any, paths: list[str]) -> Any:
    """A copy with paths cut to their last component, classes numbered, machine and user left out.

    paths: those known from the configuration, found in running text even with spaces in them.
    """
    if isinstance(value, dict):
        return {
            _text(str(key), paths): _numbered(item) if key == "classes" else redacted(item, paths)
            for key, item in value.items()
            if str(key).lower() not in PERSONAL
        }
    if isinstance(value, list):
        return [redacted(item, paths) for item in value]
    return _text(value, paths) if isinstance(value, str) else value


def _numbered(classes: Any) -> Any:
    return (
        [f"class {i}" for i in range(1, len(classes) + 1)]
        if isinstance(classes, list)
        else "redacted"
    )


def _text(text: str, paths: list[str]) -> str:
    for path in sorted(paths, key=len, reverse=True):
        if _last(path).strip("."):  # not "/" or "..", which would eat half a sentence
            text = text.replace(path, _last(path))
    if STARTS_AS_PATH.match(text):
        return _last(text)
    return PATH_IN_TEXT.sub(lambda found: _last(found.group()), text)


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
