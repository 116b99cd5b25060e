"""Gradients inverted one after the other; batches of different sizes make one reconstruction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from exhume.core.contract import (
    FILLED_UP,
    Architecture,
    Cost,
    ExhumeError,
    Gradient,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
    silent,
)
from exhume.core.errors import OutOfTime


@dataclass(frozen=True, eq=False)
class BatchAnswer:
    """What was found behind one release."""

    records: Tensor  # (b, *shape)
    confidence: Tensor  # (b,)
    observed: dict[str, float] = field(default_factory=dict)
    labels: Tensor | None = None  # (b,), where they are inferred
    complete: bool = True  # by the attack's own certificate; never where it is refused
    refused: NotApplicable | None = None  # the records are all that can be identified


@dataclass(frozen=True, eq=False)
class EachGradient:
    """An attack ready to run on one gradient after the other."""

    shape: tuple[int, ...]  # of a record
    invert: Callable[[Tensor, Tensor, int], BatchAnswer]
    """(p,) gradient, (p,) parameters it was taken at, its place among the releases.

    `NotApplicable` of one release becomes an answer without records.
    """
    who: str  # named where the release is no gradient
    stage: str
    progress: Progress = silent
    network: Architecture | None = None  # whose gradients alone can be read; None: not checked
    tokens: bool = False  # records are whole numbers

    def run(self, releases: Release) -> Reconstruction:
        if not isinstance(releases, Gradient):
            why = NotApplicable(f"{self.who} reads gradients, not weights", ever=False)
            return Reconstruction.none(0, self.shape, why)
        if self.network is not None and releases.layout != self.network.layout:
            raise ExhumeError(f"release: its layout is not that of {self.network}")
        started = time.perf_counter()
        batches = []
        for i, values in enumerate(releases.values):
            self.progress(self.stage, i, len(releases.values))
            at = releases.at if releases.at.ndim == 1 else releases.at[i]
            try:
                batches.append(self.invert(values, at, i))
            except NotApplicable as why:
                dtype = torch.int64 if self.tokens else values.dtype
                nothing = torch.zeros(0, *self.shape, dtype=dtype)
                batches.append(BatchAnswer(nothing, torch.zeros(0), refused=why))
        self.progress(self.stage, len(batches), len(batches))
        return _gathered(batches, self.shape, time.perf_counter() - started)


def goes_on(progress: Progress, stage: str, done: int, total: int) -> bool:
    """Reports progress; False where the time is over, so that a search ends with what it has."""
    try:
        progress(stage, done, total)
    except OutOfTime:
        return False
    return True


def architecture_of(knowledge: Knowledge, who: str) -> Architecture:
    """The network that an attack cannot do without."""
    if knowledge.architecture is None:
        raise NotApplicable(f"{who} needs the architecture", ever=True)
    return knowledge.architecture


def _gathered(
    batches: Sequence[BatchAnswer], shape: tuple[int, ...], seconds: float
) -> Reconstruction:
    """Best first; shorter batches are filled up with zeros."""
    most = max((len(batch.records) for batch in batches), default=0)
    dtype = batches[0].records.dtype if batches else torch.float64
    candidates = torch.zeros(len(batches), most, *shape, dtype=dtype)
    confidence = torch.full((len(batches), most), FILLED_UP, dtype=torch.float64)
    labels = torch.full((len(batches), most), -1, dtype=torch.int64)
    for i, batch in enumerate(batches):
        order = batch.confidence.argsort(descending=True, stable=True)
        count = len(order)
        candidates[i, :count] = batch.records[order].reshape(count, *shape)
        confidence[i, :count] = batch.confidence[order].double()
        if batch.labels is not None:
            labels[i, :count] = batch.labels[order]
    names = {name for batch in batches for name in batch.observed}
    observed = {
        name: sum(b.observed[name] for b in batches if name in b.observed)
        / sum(name in b.observed for b in batches)
        for name in sorted(names)
    }
    return Reconstruction(
        candidates, confidence, _status(batches), Cost(seconds), labels, observed=observed
    )


def _status(batches: Sequence[BatchAnswer]) -> Status:
    refused = [batch.refused for batch in batches if batch.refused is not None]
    if refused and len(refused) == len(batches):
        return Status(Outcome.NOT_APPLICABLE, refused[0].why, refused[0].ever)
    short = sum(not batch.complete or batch.refused is not None for batch in batches)
    if not short:
        return Status(Outcome.CONVERGED)
    why = f"{short} of {len(batches)} batches without a full certificate"
    if refused:
        why += f"; {len(refused)} not attacked: {refused[0].why}"
    return Status(Outcome.STOPPED_EARLY, why)
