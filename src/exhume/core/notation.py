"""How people write rows, sizes, times and names of code: one grammar for each, wherever it is asked for."""

from __future__ import annotations

import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from exhume.core.errors import ExhumeError
from exhume.core.files import object_at, text_at

BROKEN_ARRAYS = (
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, SyntaxError, EOFError, OSError),
    *(MemoryError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError),
)
"""What numpy raises on a file of arrays that is damaged, or that nobody has written with it."""

_MOST = 10**8  # rows of one range
_NAMELESS: Mapping[str, int] = {}
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


NO_CODE = "EXHUME_NO_CODE"
"""Where this is set in the environment, as `--no-code` does, nothing of the user's own is run."""


CEILING = "EXHUME_MEMORY"
"""In the environment, as `exhume --ceiling 4GB` puts it there: records that need more memory are refused."""


def refuse_code(name: object, what: str) -> None:
    """Refuse to run what is called so, where no code may run. what: begins the sentence."""
    if os.environ.get(NO_CODE):
        raise ExhumeError(f"{what}: {name} would run code, which --no-code ({NO_CODE}) forbids")


def is_spec(text: str) -> bool:
    """Whether a text names code, as `package.module:thing` does; a Windows drive has not its form."""
    where, colon, name = text.rpartition(":")
    return bool(colon) and len(where) > 1 and name.isidentifier()


def seconds_in(text: str) -> float | None:
    """`90`, `90s`, `10m` or `1.5h`; nothing: no limit."""
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not seconds:
        raise ExhumeError(f"budget: {text!r} is not a time such as 90s, 10m or 1.5h")
    return seconds


def duration_of(seconds: float) -> str:
    """As people say it."""
    if seconds < 0.95:
        return "under 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def about(seconds: float) -> str:
    """An estimate, as people say it."""
    return f"about {duration_of(seconds)}" if seconds >= 0.95 else duration_of(seconds)


def numbers_in(text: str, where: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ExhumeError(
            f"{where}: {text!r} is not a list of whole numbers such as 64,32"
        ) from None


def rows_in(
    text: str, where: str, *, what: str = "row numbers", names: Mapping[str, int] = _NAMELESS
) -> list[int]:
    """Numbers of rows, counted from 0, in the order in which they are written.

    `3,17`; `40-43`, both ends included; `0:100`, without its end; or a file of them, text or .npy.
    where: the option, for error messages; what: what is numbered; names: of rows, which may be written
    instead of their numbers, with a comma or a new line between two.
    """
    path = Path(text)
    if path.suffix == ".npy":
        return _rows_in_array(text, where)
    written = text_at(path, where) if text not in names and _is_file(path) else text
    if names:
        return [
            row
            for part in re.split(r"[,\n]", written.strip())
            for row in _named_rows(part.strip(), where, what, names)
        ]
    return _numbered_rows(written, text, where, what)


def _named_rows(part: str, where: str, what: str, names: Mapping[str, int]) -> list[int]:
    if part in names:
        return [names[part]]
    if re.fullmatch(r"[\d\s:-]+", part):
        return _numbered_rows(part, part, where, what)
    raise ExhumeError(
        f"{where}: {part!r} is not among the {len(set(names.values())):,} files of the data, such as "
        f"{next(iter(names))}"
    )


def _numbered_rows(written: str, text: str, where: str, what: str) -> list[int]:
    rows: list[int] = []
    for part in re.split(r"[\s,]+", written.strip()):
        ends = re.fullmatch(r"(\d+)(?:([-:])(\d+))?", part)
        if ends is None:
            raise ExhumeError(
                f"{where}: {text!r} is not a list of {what} such as 3,17,40-43 or 0:100, nor a file of them"
            )
        first, last = int(ends[1]), int(ends[3] or ends[1])
        if last - first > _MOST:
            raise ExhumeError(f"{where}: {part} are too many")
        rows += range(first, last if ends[2] == ":" else last + 1)
    return rows


def rows_by_client(
    text: str, where: str, clients: list[str], names: Mapping[str, int] = _NAMELESS
) -> dict[str, list[int]]:
    """Rows by client: `client=rows;client=rows`, a JSON file with an object, or for one client as `rows_in`.

    names: of rows, which may be written instead of their numbers.
    """
    if text.endswith(".json"):
        return _rows_in_json(text, where, clients, names)
    written = [part.strip().partition("=") for part in text.split(";")]
    if sorted(client for client, equals, _ in written if equals) == sorted(clients):
        return {client: rows_in(rows, where, names=names) for client, _, rows in written}
    if len(clients) > 1:
        raise ExhumeError(
            f"{where}: there are {len(clients)} clients ({', '.join(clients)}), so a JSON file with "
            "an object from client to indices is needed, or client=indices;client=indices"
        )
    return {clients[0]: rows_in(text, where, names=names)}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _rows_in_json(
    text: str, where: str, clients: list[str], names: Mapping[str, int]
) -> dict[str, list[int]]:
    content = object_at(Path(text), where)
    if not set(clients) <= set(content):
        raise ExhumeError(
            f"{where}: {text} must hold an object with indices for {', '.join(clients)}"
        )
    lists = {client: content[client] for client in clients}
    kinds = (int, str) if names else (int,)
    if not all(isinstance(i, list) and all(type(n) in kinds for n in i) for i in lists.values()):
        besides = ", or names of files" if names else ""
        raise ExhumeError(f"{where}: {text} must hold lists of whole numbers{besides}")
    return {
        client: [
            row
            for one in rows
            for row in ([one] if isinstance(one, int) else _named_rows(one, where, "rows", names))
        ]
        for client, rows in lists.items()
    }


def _rows_in_array(text: str, where: str) -> list[int]:
    import numpy as np  # late: the command line's help does not need it

    try:
        # not read but mapped: an array that promises more than the file holds is refused unread
        found = np.load(text, mmap_mode="r", allow_pickle=False)
    except BROKEN_ARRAYS as error:
        raise ExhumeError(f"{where}: cannot read {text} ({str(error)[:300]})") from error
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu":
        raise ExhumeError(f"{where}: {text} must hold one list of whole numbers")
    return [int(row) for row in found]
