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
    """Audit from Python: settings as nested dicts, or the path of a TOML file; see `exhume.settings`.

    >>> exhume.audit({"data": {"source": "photos/"}, "victim": {"hidden": [32]}}, out="run")
    """
    from exhume.auditing import (
        audit as run,
    )  # importing torch takes seconds: only when it is needed
    from exhume.contract import silent
    from exhume.settings import Settings

    if isinstance(settings, dict):
        chosen = Settings.from_mapping(settings)
    else:
        chosen = Settings.from_toml(Path(settings))
    return run(chosen, Path(out), progress=progress or silent, redact=redact)
