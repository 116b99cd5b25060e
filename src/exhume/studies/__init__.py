"""Studies: one figure or table of a paper each, rerun through the public parts of exhume."""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from typing import Any

from exhume.contract import ExhumeError, Progress, silent
from exhume.report.folder import RunFolder, environment
from exhume.report.page import draw
from exhume.studies import gradient, informed, margin, split
from exhume.studies.study import Scale, Study

__all__ = ["STUDIES", "run_study", "study_named"]

_FAMILIES = (informed, split, margin, gradient)
STUDIES: dict[str, Study] = {study.name: study for family in _FAMILIES for study in family.STUDIES}


def study_named(name: str) -> Study:
    if name not in STUDIES:
        close = difflib.get_close_matches(name, STUDIES, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(STUDIES)}"
        raise ExhumeError(f"study: {name!r} is not known; {hint}")
    return STUDIES[name]


def run_study(
    name: str, scale: Scale, out: Path, *, seed: int = 0, progress: Progress = silent
) -> dict[str, Any]:
    """Run a study, write its result and report, return the result."""
    study = study_named(name)
    started = time.perf_counter()
    folder = RunFolder.create(out)
    outcome = study.run(scale, seed, folder, progress)
    result = {
        "schema": 1,
        "kind": "study",
        "study": name,
        "scale": scale,
        "seed": seed,
        "title": study.title,
        "claims": [claim.plain() for claim in outcome.claims],
        "charts": [chart.plain() for chart in outcome.charts],
        "metrics": outcome.metrics,
        "attacks": outcome.attacks,
        "classes": outcome.classes,
        "deviations": outcome.deviations,
        "wall_seconds": time.perf_counter() - started,
        "environment": environment(),
    }
    folder.write_json("environment.json", environment())
    folder.write_json("result.json", result)
    draw(folder.path)
    return result
