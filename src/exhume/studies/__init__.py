"""Studies: one figure or table of a paper each, rerun through the public parts of exhume."""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from typing import Any

from exhume.contract import ExhumeError, Progress, silent
from exhume.report.folder import RunFolder, environment
from exhume.report.page import draw
from exhume.studies import (
    certificates,
    ensembler_cifar10,
    ensembler_cifar100,
    ensembler_faces,
    ensembler_selector,
    gradient_batch,
    gradient_client,
    gradient_deep,
    gradient_defences,
    gradient_query,
    gradient_start,
    gradient_tensor,
    gradient_tokens,
    informed_activations,
    informed_cifar10,
    informed_dp,
    informed_epochs,
    informed_factors,
    informed_gallery,
    informed_glm,
    informed_init,
    informed_misspecified,
    informed_mnist,
    informed_start,
    informed_transfer,
    informed_zero_gradients,
    margin_classes,
    margin_defence,
    margin_large,
    margin_multiclass,
    margin_search,
    margin_weight_decay,
    mnemonist,
    reconstructors,
    split_knowledge,
    split_points,
    split_text,
)
from exhume.studies.study import Scale, Study

__all__ = ["STUDIES", "run_study", "study_named"]

_ALL = (
    informed_mnist,
    informed_misspecified,
    reconstructors,
    informed_init,
    informed_glm,
    mnemonist,
    informed_activations,
    informed_dp,
    informed_epochs,
    informed_start,
    informed_factors,
    informed_zero_gradients,
    informed_transfer,
    informed_gallery,
    informed_cifar10,
    certificates,
    ensembler_cifar10,
    split_points,
    split_knowledge,
    split_text,
    ensembler_cifar100,
    ensembler_faces,
    ensembler_selector,
    margin_multiclass,
    margin_classes,
    margin_weight_decay,
    margin_defence,
    margin_search,
    margin_large,
    gradient_tensor,
    gradient_batch,
    gradient_start,
    gradient_query,
    gradient_defences,
    gradient_deep,
    gradient_client,
    gradient_tokens,
)
STUDIES: dict[str, Study] = {module.STUDY.name: module.STUDY for module in _ALL}


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
