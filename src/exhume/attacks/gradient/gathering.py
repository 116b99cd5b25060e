"""Batches of different sizes, put together into one reconstruction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.reading import Observation, TwoLast
from exhume.contract import (
    FILLED_UP,
    Cost,
    ExhumeError,
    Gradient,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Release,
    Status,
)

__all__ = ["Batch", "gather", "invert_each"]


@dataclass(frozen=True, eq=False)
class Batch:
    """What was found behind one release."""

    records: Tensor  # (b, *shape)
    confidence: Tensor  # (b,)
    labels: Tensor  # (b,)
    observed: dict[str, float]
    complete: bool  # by the attack's own certificate
    refused: Status | None = None  # NOT_APPLICABLE: the records are all that can be identified


def invert_each(
    releases: Release,
    view: TwoLast,
    invert: Callable[[Observation, torch.dtype], Batch],
    *,
    who: str,
    stage: str,
    progress: Progress,
) -> Reconstruction:
    """Invert one gradient after the other; `who` is named where the release is none."""
    if not isinstance(releases, Gradient):
        why = NotApplicable(f"{who} reads gradients, not weights", ever=False)
        return Reconstruction.none(0, view.shape, why)
    if releases.layout != view.architecture.layout:
        raise ExhumeError(f"release: its layout is not that of {view.architecture}")
    started = time.perf_counter()
    batches = []
    for i in range(len(releases.values)):
        progress(stage, i, len(releases.values))
        batches.append(invert(view.observe(releases, i), releases.values.dtype))
    progress(stage, len(batches), len(batches))
    return gather(batches, view.shape, time.perf_counter() - started)


def gather(batches: Sequence[Batch], shape: tuple[int, ...], seconds: float) -> Reconstruction:
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


def _status(batches: Sequence[Batch]) -> Status:
    refused = [batch.refused for batch in batches if batch.refused is not None]
    if refused and len(refused) == len(batches):
        return refused[0]
    short = sum(not batch.complete for batch in batches)
    if not short:
        return Status(Outcome.CONVERGED)
    why = f"{short} of {len(batches)} batches without a full certificate"
    if refused:
        why += f"; {len(refused)} not attacked: {refused[0].reason}"
    return Status(Outcome.STOPPED_EARLY, why)
