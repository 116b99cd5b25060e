"""Studies: one figure or table of a paper each, rerun through the public parts of exhume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exhume.core.contract import Progress, silent
from exhume.core.errors import unknown_name
from exhume.core.results import StudyResult
from exhume.studies import framework
from exhume.studies.framework import RunOptions, Scale, Study
from exhume.studies.gradient import batch, clients, networks, tensor, texts
from exhume.studies.informed import (
    certificates,
    cifar10,
    gallery,
    glm,
    init,
    mnemonist,
    mnist,
    reconstructors,
    transfer,
    varied,
    versions,
    zero_gradients,
)
from exhume.studies.margin import figures, ordinary
from exhume.studies.split import (
    ensembler_selector,
    ensembler_tables,
    knowledge,
    points,
    text,
)
from exhume.studies.verdict import estimates, trust

__all__ = ["STUDIES", "run_study", "study_named"]

_INFORMED = (
    *(mnist.STUDY, reconstructors.STUDY, init.STUDY, glm.STUDY),
    *(mnemonist.STUDY, varied.ACTIVATIONS, varied.PRIVACY, varied.LENGTHS, varied.STARTS),
    *(zero_gradients.STUDY, transfer.STUDY, gallery.STUDY, cifar10.STUDY, certificates.STUDY),
    versions.STUDY,
)
_SPLIT = (
    *(ensembler_tables.CIFAR10, points.STUDY, knowledge.STUDY, text.STUDY),
    *(ensembler_tables.CIFAR100, ensembler_tables.FACES, ensembler_selector.STUDY),
)
_MARGIN = (
    *(figures.MULTICLASS, figures.CLASSES, figures.WEIGHT_DECAY, figures.LARGE),
    *(ordinary.STUDY, figures.THOUSAND),
)
_GRADIENT = (
    *(tensor.STUDY, batch.STUDY, batch.START, batch.QUERY, batch.DEFENCES),
    *(tensor.NOISE, batch.DEEP, texts.STUDY, networks.STUDY, clients.STUDY),
)
STUDIES: dict[str, Study[Any]] = {
    study.name: study
    for study in (*_INFORMED, *_SPLIT, *_MARGIN, *_GRADIENT, trust.STUDY, estimates.STUDY)
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
    asked = RunOptions(seed, data, device, resume_anyway)
    return framework.run_study(study_named(name), scale, out, asked, progress=progress, keep=keep)
