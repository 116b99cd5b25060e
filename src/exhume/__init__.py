"""Which private records can be dug back out of what you release, how well, by whom, what stops it."""

from __future__ import annotations

from importlib.metadata import version as _version
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exhume.auditing import Audit, Plan
    from exhume.core.contract import Progress
    from exhume.report.gate import Change
    from exhume.settings import Brief

from exhume.settings.reference import brief_keys as _brief_keys

__all__ = ["Audit", "__version__", "audit", "audit_fitted", "compare", "plan"]
__version__ = _version("exhume")


def audit(
    settings: dict[str, Any] | str | _Path,
    out: str | _Path,
    *,
    progress: Progress | None = None,
    redact: bool = False,
    resume_anyway: bool = False,
) -> Audit:
    """Attack what you release, and say what leaks.

    settings: a brief, as nested dicts or as the path of a TOML file; out: the run folder. The same call
    resumes a stopped run. The brief has these sections and keys; which sections are there says what is
    released:

    KEYS

    The `Audit` that comes back has `verdict` (word, sentence, detail), `leak` (successes, trials, low, high),
    `metrics`, `advice`, `alarm`, `folder`, `report`, and `result`: everything in result.json (title, data,
    seed, conditions, verdict, leak, alarm, attacks, plan, fixes, releases, controls, reach, charts, victim,
    classes, deviations, extent, resumed_from, wall_seconds).

    >>> exhume.audit({"data": {"source": "photos/"}, "victim": {"hidden": [32]}}, out="run")
    """
    from exhume import auditing  # importing torch takes seconds: only when it is needed
    from exhume.core.contract import silent

    return auditing.audit(
        _brief(settings),
        _Path(out),
        progress=progress or silent,
        redact=redact,
        resume_anyway=resume_anyway,
    )


audit.__doc__ = (audit.__doc__ or "").replace(
    "    KEYS", _brief_keys("    ")
)  # none under python -OO


def plan(settings: dict[str, Any] | str | _Path, *, progress: Progress | None = None) -> Plan:
    """What `audit` would do with this brief: attacks, records, models, steps, seconds, what is left out.

    Everything is read, nothing is trained or written. `print("\\n".join(plan.lines()))`, or `plan.to_json()`.
    """
    from exhume import auditing
    from exhume.core.contract import silent

    return auditing.plan(_brief(settings), progress=progress or silent)


def compare(first: str | _Path, second: str | _Path) -> list[Change]:
    """Two run folders, attack by attack: does the second leak more, less, or as much within noise?"""
    from exhume.report.gate import compare as changes

    return changes(_Path(first), _Path(second))


def audit_fitted(
    model: Any,
    inputs: Any,
    labels: Any,
    out: str | _Path,
    *,
    targets: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
    redact: bool = False,
    resume_anyway: bool = False,
) -> Audit:
    """Audit a fitted scikit-learn `LogisticRegression` together with what it was fitted on.

    inputs: (n, d) numbers as the model saw them; labels: (n,) members of `model.classes_`.

    >>> exhume.audit_fitted(LogisticRegression(tol=1e-8).fit(x, y), x, y, out="run")
    """
    from exhume import auditing
    from exhume.auditing.kinds.fitted import fitted_case
    from exhume.core.contract import silent
    from exhume.readers.fitted import records_of_fitted
    from exhume.settings import Brief, FittedSettings

    chosen = FittedSettings(targets=targets)
    records = records_of_fitted(model, inputs, labels)
    case = fitted_case(chosen, records, seed, "in memory", model)
    return auditing.audit(
        Brief.of(chosen).with_options(seed=seed),
        _Path(out),
        progress=progress or silent,
        redact=redact,
        resume_anyway=resume_anyway,
        given={"fitted": case},
    )


def _brief(settings: dict[str, Any] | str | _Path) -> Brief:
    from exhume.settings import Brief

    if isinstance(settings, str | _Path):
        return Brief.from_toml(_Path(settings))
    return Brief.from_mapping(settings)


def __getattr__(name: str) -> Any:
    if name == "Audit":
        from exhume.auditing import Audit

        return Audit
    raise AttributeError(f"module 'exhume' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
