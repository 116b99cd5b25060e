"""Studies: one figure or table of a paper each, rerun through the public parts of exhume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exhume.core.contract import Progress, silent
from exhume.core.errors import unknown_name
from exhume.core.results import StudyResult
from exhume.studies import framework, gradient, informed, margin, split, verdict
from exhume.studies.framework import Asked, Scale, Study

__all__ = ["STUDIES", "run_study", "study_named"]

_FAMILIES = (informed, split, margin, gradient, verdict)
STUDIES: dict[str, Study[Any]] = {
    study.name: study for family in _FAMILIES for study in family.STUDIES
}


def study_named(name: str) -> Study[Any]:
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    return STUDIES[name]


def run_study(
    name: str,
    scale: Scale,
    out: Path,
    *,
    seed: int = 0,
    data: str = "",
    device: str = "cpu",
    resume_anyway: bool = False,
    progress: Progress = silent,
    keep: Path | None = None,
) -> StudyResult:
    """Run a study by name, write its result and report, return the result."""
    asked = Asked(seed, data, device, resume_anyway)
    return framework.run_study(study_named(name), scale, out, asked, progress=progress, keep=keep)
