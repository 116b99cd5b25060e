"""What attacks read, and what they hand back: one model, one gradient or one client's features at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from exhume.core.contract import (
    FILLED_UP,
    Activations,
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
    Weights,
    silent,
)
from exhume.core.errors import OutOfTime

OneEach = tuple[Tensor, Tensor, Tensor | None, dict[str, float]]
"""Of r models the records (r, *shape), confidence (r,), perhaps labels (r,), and what was observed.

Of several unknown records a model (r, e, *shape), (r, e) and (r, e).
"""


def read_weights(
    releases: Release,
    shape: tuple[int, ...],
    size: int,
    answer: Callable[[Weights], OneEach],
    cost: Cost,
    *,
    who: str,
    whose: str,
) -> Reconstruction:
    """The answer to r models of `size` parameters, which is what `whose` has. shape: of a record."""
    if not isinstance(releases, Weights):
        why = NotApplicable(f"{who} reads weights, not gradients or features", ever=False)
        return Reconstruction.none(0, shape, why)
    models, given = releases.parameters.shape
    if given != size:
        raise ExhumeError(f"release: {given} parameters, {whose} {size}")
    started = time.perf_counter()
    try:
        records, confidence, labels, observed = answer(releases)
    except NotApplicable as why:
        return Reconstruction.none(models, shape, why)
    confidence = confidence if confidence.ndim == 2 else confidence[:, None]
    return Reconstruction(
        records.reshape(*confidence.shape, *shape),
        confidence,
        Status(Outcome.CONVERGED),
        replace(cost, seconds=cost.seconds + time.perf_counter() - started),
        None if labels is None else labels.reshape(confidence.shape),
        observed=observed,
    )


Answer = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""(n, k, *shape) candidates, (n, k) confidence, and perhaps (n, k) labels."""


@dataclass(frozen=True, eq=False)
class EachSent:
    """An attack ready to run on whatever one client sends."""

    shape: tuple[int, ...]  # of a record
    features: tuple[int, ...]  # of what is sent for it
    wanted: str  # ends the complaint about features of another shape
    answer: Callable[[Tensor], Answer]  # to (n, *features)
    cost: Cost = field(default_factory=Cost)  # of what was prepared
    observed: dict[str, float] = field(default_factory=dict)

    def run(self, releases: Release) -> Reconstruction:
        if not isinstance(releases, Activations):
            why = NotApplicable("this attack reads features, not weights or gradients", ever=False)
            return Reconstruction.none(0, self.shape, why)
        given = tuple(releases.values.shape[1:])
        if given != self.features:
            raise ExhumeError(f"release: features of shape {given}, {self.wanted}")
        started = time.perf_counter()
        candidates, confidence, *labels = self.answer(releases.values)
        return Reconstruction(
            candidates,
            confidence,
            Status(Outcome.CONVERGED),
            replace(self.cost, seconds=self.cost.seconds + time.perf_counter() - started),
            labels[0] if labels else None,
            observed=self.observed,
        )


@dataclass(frozen=True, eq=False)
class BatchAnswer:
    """What was found behind one gradient."""

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
    """One reconstruction of all batches, best first; shorter ones are filled up with zeros."""
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
