"""Text and JSON in files that somebody else wrote: never more than a bound, and wrong in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exhume.core.errors import ExhumeError

_LARGEST = 1 << 28  # bytes


def text_at(path: Path, what: str = "", *, most: int = _LARGEST) -> str:
    """A text in UTF-8, its lines ended by `\\n`. what: begins the sentence on what is wrong with it."""
    where = _begin(path, what)
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ExhumeError(f"{where}: more than {most:,} bytes")
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ExhumeError(f"{where}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ExhumeError(f"{where}: not a text file in UTF-8 ({error})") from error


def json_at(path: Path, what: str = "") -> Any:
    """What a JSON file says."""
    try:
        return json.loads(text_at(path, what))
    except (ValueError, RecursionError) as error:
        why = str(error)[:300]
        raise ExhumeError(f"{_begin(path, what)}: not readable as JSON ({why})") from error


def object_at(path: Path, what: str = "") -> dict[str, Any]:
    """The object that a JSON file holds."""
    value = json_at(path, what)
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ExhumeError(f"{_begin(path, what)}: must hold a JSON object, not {kind}")
    return value


def _begin(path: Path, what: str) -> str:
    return f"{what}: {path}" if what else str(path)
