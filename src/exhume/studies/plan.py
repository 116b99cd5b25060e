"""What a study takes at one of its scales, before it is run: `exhume study run NAME --dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from exhume import readers
from exhume.auditing.plan import Stage
from exhume.choices import Trains, recipe_for
from exhume.core.contract import ExhumeError, Records
from exhume.core.notation import duration_of
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.store.memory import size_of

if TYPE_CHECKING:
    from exhume.studies.framework import Scale, Study


def stand_in(sizes: DataSettings, victim: VictimSettings) -> tuple[Trains, tuple[int, ...], int]:
    """The recipe of a victim on a named set, the set's shape and its classes, without reading it."""
    shapes = {known.name: known.shape for known in readers.catalogue()}
    shape, classes = shapes[sizes.source], 10  # of mnist, cifar10 and digits alike
    labels = torch.zeros(1, dtype=torch.int64)
    one = Records(torch.zeros(1, *shape), labels, tuple(str(i) for i in range(classes)))
    return recipe_for(Settings(0, sizes, victim), one), shape, classes


def planned_seconds(study: Study[object], scale: Scale, workers: int, threads: int) -> float | None:
    """By what the study counts of its work; None: it does not."""
    if study.stages is None:
        return None
    stages = study.stages(study.scales[scale])
    return 3600 * sum(stage.hours(workers, threads) for stage in stages)


def plan_lines(study: Study[object], scale: Scale, workers: int, threads: int) -> list[str]:
    """For the console. workers: of one thread each; threads: of the process that starts them."""
    if scale not in study.scales:
        raise ExhumeError(f"--scale: {study.name} has {', '.join(study.scales)}, {scale!r} given")
    if study.stages is None:
        raise ExhumeError(f"--dry-run: {study.name} does not count its work; run it at scale smoke")
    if workers < 1:
        raise ExhumeError(f"--workers: at least 1 needed, got {workers}")
    stages = study.stages(study.scales[scale])
    head = f"plan: {study.name} at scale {scale}, {workers:,} workers of one thread"
    return [
        head,
        *(f"  {one.line(workers, threads)}" for one in stages),
        _sum(stages, workers, threads),
    ]


def _sum(stages: Sequence[Stage], workers: int, threads: int) -> str:
    operations = sum(one.operations or 0.0 for one in stages)
    memory = size_of(max(one.memory for one in stages))
    disk = size_of(sum(one.disk for one in stages))
    spent = duration_of(3600 * sum(one.hours(workers, threads) for one in stages))
    return (
        f"plan: {operations:.1e} operations, {memory} of memory at most in one process, {disk} on disk, "
        f"{spent} in all"
    )
