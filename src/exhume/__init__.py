"""Find out which training records an attacker can reconstruct from what you release, and what stops it."""

from __future__ import annotations

from importlib.metadata import version as _version
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exhume.auditing import Audit, Plan
    from exhume.core.contract import Progress
    from exhume.report.gate import Change
    from exhume.settings import Brief

from exhume.settings.reference import brief_keys as _brief_keys

__all__ = ["Audit", "__version__", "audit", "audit_fitted", "compare", "plan"]
__version__ = _version("exhume")


def audit(
    released: Any,
    records: Any = None,
    out: str | _Path | None = None,
    *,
    train: Any = None,
    strangers: Any = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    redact: bool = False,
    resume_anyway: bool = False,
) -> Audit:
    """Attack what you release, and say what leaks.

    audit(settings, out): a brief, as nested dicts or as the path of a TOML file, and the run folder.
    audit(model, records): what is in memory. An `nn.Module` is a checkpoint, attacked as it is; with train=
    it is a network that is trained so, and may also be a function that makes one; a fitted scikit-learn
    model is attacked as such. out: the run folder; not given: one below runs/ that this call finds again.

    records: a pair (inputs, labels) of arrays or tensors, a torch Dataset, or the name or path of a set.
    train: `train(model, inputs, labels)`, or keys of [victim]: {"optimiser": "sgd", "batch": 32}.
    strangers: of a checkpoint or a fitted model, records like those that it was not trained on.
    settings: more of a brief.

    The same call resumes a stopped run. The brief has these sections and keys; which sections are there
    says what is released:

    KEYS

    The `Audit` that comes back has `verdict` (word, sentence, detail), `leak` (successes, trials, low, high),
    `records` (whether each target was identified), `metrics`, `advice`, `alarm`, `folder`, `report`, and
    `result`: everything in result.json (title, data, seed, conditions, verdict, leak, alarm, attacks, plan,
    fixes, releases, controls, reach, charts, victim, classes, deviations, extent, next, resumed_from,
    wall_seconds).

    >>> exhume.audit({"data": {"source": "photos/"}, "victim": {"hidden": [32]}}, out="run")
    >>> exhume.audit(model, (inputs, labels), train={"steps": 500, "rate": 0.1})
    """
    from exhume import auditing  # importing torch takes seconds: only when it is needed
    from exhume.core.contract import ExhumeError, silent
    from exhume.store.scale import Here, spread_over

    shown = progress or silent
    if isinstance(released, dict | str | _Path):
        if not (train is strangers is settings is None):
            raise ExhumeError(
                "train, strangers, settings: only together with a model; a brief has all"
            )
        brief = _brief(released)
        folder = out or (records if isinstance(records, str | _Path) else brief.resolved().folder())
        return auditing.audit(
            brief, _Path(folder), progress=shown, redact=redact, resume_anyway=resume_anyway
        )
    given = auditing.in_memory(
        released,
        records,
        train=train,
        strangers=strangers,
        settings=settings or {},
        progress=shown,
    )
    with spread_over(Here()):
        return auditing.audit(
            given.brief,
            _Path(out or given.folder),
            progress=shown,
            redact=redact,
            resume_anyway=resume_anyway,
            given=given.cases,
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
    others: Any = None,
    targets: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
    redact: bool = False,
    resume_anyway: bool = False,
) -> Audit:
    """Audit a fitted `LogisticRegression`, `LinearRegression` or `Ridge` with what it was fitted on.

    inputs: (n, d) numbers as the model saw them; labels: (n,) members of `model.classes_`, or targets.
    others: a pair of the same, of records that it was not fitted on: then there is a line-up, too.

    >>> exhume.audit_fitted(LogisticRegression(tol=1e-8).fit(x, y), x, y, out="run")
    """
    return audit(
        model,
        (inputs, labels),
        out,
        strangers=others,
        settings={"seed": seed, "fitted": {"targets": targets}},
        progress=progress,
        redact=redact,
        resume_anyway=resume_anyway,
    )


def _brief(settings: Mapping[str, Any] | str | _Path) -> Brief:
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
