"""What can be refused before torch is imported: runs that are not finished, studies that do not exist."""

from __future__ import annotations

import re
from pathlib import Path

from exhume.core.errors import unfinished, unknown_name

__all__ = ["refuse_unfinished", "refuse_unknown_study", "study_names"]

_NAMED = re.compile(r"^[A-Z][A-Z0-9_]* = \w+\(\s*\"([a-z0-9-]+)\"", re.MULTILINE)


def refuse_unfinished(run: Path) -> None:
    """Refuse a folder that holds no result."""
    result = run / "result.json"
    if not result.exists():
        raise unfinished(result)


def refuse_unknown_study(name: str) -> None:
    if name not in (known := study_names()):
        raise unknown_name("study", name, known)


def study_names() -> list[str]:
    """Read off the files of the studies, since importing one imports torch; a name too many does no harm."""
    folder = Path(__file__).parents[1] / "studies"
    files = sorted(folder.glob("*/*.py"))
    return [name for file in files for name in _NAMED.findall(file.read_text(encoding="utf-8"))]
