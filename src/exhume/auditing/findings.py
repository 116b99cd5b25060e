"""What an attack found on one victim, and what an audit hands back."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from exhume.contract import NotApplicable, Progress, Reconstruction
from exhume.report.folder import RunFolder
from exhume.report.page import draw
from exhume.score.verdict import Verdict, not_audited

__all__ = ["Audit", "Findings", "Named", "inapplicable", "pages_of", "status_of"]


@dataclass(frozen=True)
class Named:
    """How an attack is called in the run folder and on the page."""

    id: str
    name: str
    paper: str
    sees: str


@dataclass(frozen=True, eq=False)
class Findings:
    """One attack on one victim, scored."""

    section: dict[str, Any]  # the attack's part of result.json: numbers and words, no records
    evidence: dict[str, Tensor]  # records and per-record numbers, for the report
    victim: dict[str, str | float]
    verdict: Verdict
    counts: bool = True  # for the verdict of the audit; False: a bound, or a comparison

    @property
    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = self.section["metrics"]
        return metrics


@dataclass(frozen=True)
class Audit:
    """What an audit found and where it is written. In a notebook it shows its report."""

    verdict: Verdict
    metrics: Mapping[str, float]  # of the strongest attack on all targets
    folder: Path
    report: Path
    redacted: Path | None = None  # a version without records, where it was asked for
    advice: tuple[str, ...] = ()  # fixes that were tried, best first, in words
    alarm: str = ""  # in words, where an attack did better than the stated privacy allows

    def _repr_html_(self) -> str:
        page = html.escape(self.report.read_text(encoding="utf-8"), quote=True)
        return (
            f"<p><b>{html.escape(self.verdict.sentence)}</b></p>"
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" '
            'style="width:100%;height:640px;border:1px solid #ccc"></iframe>'
        )


def pages_of(folder: RunFolder, *, redact: bool, progress: Progress) -> tuple[Path, Path | None]:
    """Draw the report of a finished run, and a version without records where it is asked for."""
    progress("drawing the report", 0, 1)
    report = draw(folder.path)
    redacted = draw(folder.path, redact=True) if redact else None
    progress("drawing the report", 1, 1)
    return report, redacted


def inapplicable(
    named: Named, knows: tuple[str, ...], facts: dict[str, str | float], why: NotApplicable
) -> Findings:
    """The section of an attack that could not be mounted: the reason, and no numbers."""
    found = Reconstruction.none(0, (), why)
    section = {
        "id": named.id,
        "name": named.name,
        "paper": named.paper,
        "sees": named.sees,
        "knows": list(knows),
        "status": status_of(found),
        "metrics": {},
        "baselines": [],
        "cost": asdict(found.cost),
        "notes": [],
    }
    return Findings(section, {}, facts, not_audited(why.why))


def status_of(found: Reconstruction) -> dict[str, Any]:
    status = found.status
    return {"outcome": status.outcome.value, "reason": status.reason, "ever": status.ever}
