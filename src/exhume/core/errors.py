"""What can go wrong and be said in a sentence. Importing it costs nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

# Control characters, ends of lines and pages, changes of direction, bytes that are no text.
_RAW = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text as one line that any terminal can be given: what would steer it is written as an escape."""
    return _RAW.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class ExhumeError(Exception):
    """Something the user can act on, said in one sentence. The command line prints it and exits 2.

    The sentence may name files and classes of somebody else's, so that it is made printable.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class NotApplicable(ExhumeError):  # noqa: N818 - a result as much as an error
    """An attack cannot be mounted with this release and this knowledge."""

    def __init__(self, why: str, *, ever: bool) -> None:
        super().__init__(why)
        self.why = why
        self.ever = ever  # could it work with more knowledge or a later version, or never?


class OutOfTime(ExhumeError):  # noqa: N818 - a result as much as an error
    """The time of an audit is over: what is finished is kept, and judged."""


STOPPED = (OutOfTime, KeyboardInterrupt)


def unknown_name(what: str, given: str, names: Iterable[str]) -> ExhumeError:
    """The error for a name that is not there; it says the nearest one that is, or all of them."""
    return ExhumeError(f"{what}: {given!r} is not known; {nearest(given, names)}")


def nearest(given: str, names: Iterable[str]) -> str:
    """Which of the names is meant, as a question; all of them where none is near."""
    known = list(names)
    close = difflib.get_close_matches(given, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def unfinished(result: Path) -> ExhumeError:
    """The error for a folder without the file that a finished run has."""
    return ExhumeError(f"{result}: missing, so there is no finished run to draw here")


def optional(name: str, extra: str, what: str) -> Any:
    """The module of a package that need not be there; without it, a sentence on what needs it."""
    package = name.partition(".")[0]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != package:
            raise
        raise ExhumeError(f"{what} needs {package}: pip install 'exhume[{extra}]'") from None
