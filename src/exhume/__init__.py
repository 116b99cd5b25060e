"""Which private records can be dug back out of what you release, how well, by whom, what stops it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exhume.auditing import Audit
    from exhume.contract import Progress

__all__ = ["audit"]


def audit(
    settings: dict[str, Any] | str | Path,
    out: str | Path,
    *,
    progress: Progress | None = None,
    redact: bool = False,
) -> Audit:
    """Audit from Python: a brief as nested dicts, or the path of a TOML file; see `exhume.auditing.brief`.

    >>> exhume.audit({"data": {"source": "photos/"}, "victim": {"hidden": [32]}}, out="run")
    """
    from exhume.auditing import Brief  # importing torch takes seconds: only when it is needed
    from exhume.auditing import audit as run
    from exhume.contract import silent

    if isinstance(settings, str | Path):
        brief = Brief.from_toml(Path(settings))
        return run(brief, Path(out), progress=progress or silent, redact=redact)
    return run(Brief.from_mapping(settings), Path(out), progress=progress or silent, redact=redact)
