"""Which private records can be dug back out of what you release, how well, by whom, what stops it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exhume.auditing import Audit
    from exhume.contract import Progress

__all__ = ["audit", "audit_fitted"]


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


def audit_fitted(
    model: Any,
    inputs: Any,
    labels: Any,
    out: str | Path,
    *,
    targets: int = 50,
    seed: int = 0,
    progress: Progress | None = None,
    redact: bool = False,
) -> Audit:
    """Audit a fitted scikit-learn `LogisticRegression` together with what it was fitted on.

    inputs: (n, d) numbers as the model saw them; labels: (n,) members of `model.classes_`.

    >>> exhume.audit_fitted(LogisticRegression(tol=1e-8).fit(x, y), x, y, out="run")
    """
    from exhume.auditing import Brief
    from exhume.auditing import audit as run
    from exhume.contract import silent
    from exhume.victims.fitted import records_of_fitted

    told = {"seed": seed, "fitted": {"targets": targets}}
    records = records_of_fitted(model, inputs, labels)
    return run(
        Brief.from_mapping(told),
        Path(out),
        progress=progress or silent,
        redact=redact,
        fitted=(model, records),
    )
