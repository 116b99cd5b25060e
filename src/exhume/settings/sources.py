"""What may be named as records or as code, and whether it is there: known before torch is imported.

Reading takes seconds to begin with; a misspelt name or a missing file is said at once.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from exhume.core.errors import ExhumeError
from exhume.core.notation import is_spec, refuse_code
from exhume.settings.brief import Brief
from exhume.settings.schema import Setting, settings_of, toml_at

NAMED_SETS: Mapping[str, Mapping[str, Any]] = toml_at(Path(__file__).with_name("sets.toml"))
IMAGE_SETS = tuple(name for name, known in NAMED_SETS.items() if known["kind"] == "images")
PAIR_SETS = tuple(name for name in NAMED_SETS if name not in IMAGE_SETS)
FORMATS = (
    "a folder of images, a folder of idx files, an .npz or .csv file, a binary CIFAR folder or archive, "
    "a .txt file or a folder of such, a Hugging Face datasets folder, and package.module:dataset"
)
_CODE = ("network", "model", "train")  # settings that may name a function in a file


def check_files(brief: Brief) -> None:
    """Refuse a brief that names records, a file or a function's file that is not there."""
    sections = [brief.settings.victim] if brief.weights else []
    for section in (*sections, *brief.releases().values()):
        for name, (_, known) in settings_of(section).items():
            _check(name, getattr(section, name), known)
    if brief.weights:
        check_source(brief.settings.data.source)


def _check(name: str, value: Any, known: Setting) -> None:
    if not value:
        return
    if known.file and not _there(value):
        raise ExhumeError(f"{name}: there is no file {value}")
    file, _, function = str(value).rpartition(":")
    if name in _CODE and file and function:
        refuse_code(value, name)
        if file.endswith(".py") and not _there(file):
            raise ExhumeError(f"{name}: {value}: there is no file {file}")
    if name == "trust":
        refuse_code("what a file of weights holds", name)
    if known.shared == "data":
        check_source(value)


def _there(text: str) -> bool:
    """A name that no file can have is of none."""
    try:
        return bool(text) and Path(text).expanduser().exists()
    except (OSError, RuntimeError):  # too long; the home of nobody
        return False


def check_source(source: str | Path) -> None:
    """Refuse records that nothing could be read from: no such name, no such file."""
    text = str(source)
    name, colon, rest = text.partition(":")
    if isinstance(source, str) and name in (*IMAGE_SETS, *PAIR_SETS):
        if colon:
            _existing(rest)
        return
    if _there(text):
        return
    before, colon, _ = text.rpartition(":")
    if colon and Path(before).suffix == ".csv":
        _existing(before)
    elif not (colon and _there(before)) and not (is_spec(text) and _importable(before)):
        if not _looks_like_path(source):
            raise unknown_source(name, IMAGE_SETS, "a path")
        _existing(text)
    elif is_spec(text) and not Path(before).is_dir():
        refuse_code(text, "data")


def unknown_source(given: str, names: Iterable[str], otherwise: str) -> ExhumeError:
    """The error for a name that is not there; it says the nearest one that is."""
    legal = list(names)
    near = difflib.get_close_matches(given, legal, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ExhumeError(
        f"no such data: {given[:300]!r}; {hint}legal are {', '.join(legal)} and {otherwise}"
    )


def _importable(where: str) -> bool:
    """A misspelt `mnist:folder` is no module; what has a dot is meant as one, found or not."""
    if "." in where:
        return True
    return Path(f"{where}.py").is_file() or Path(where).is_dir() or find_spec(where) is not None


def _existing(text: str) -> None:
    if not _there(text):
        raise ExhumeError(f"no such file or folder: {text!r}; legal are {FORMATS}")


def _looks_like_path(source: str | Path) -> bool:
    if isinstance(source, Path):
        return True
    name, colon, _ = source.partition(":")
    if colon and len(name) > 1:  # not a Windows drive: a misspelt name:path
        return False
    return os.sep in source or source.startswith(("~", ".")) or bool(Path(source).suffix)
