"""What needs no release at all: the bar every attack must clear.

`MeanRecord` answers with the average of what the adversary holds. `NearestRecord` snaps another
attack's answer to the closest record the adversary holds, to tell reconstruction from retrieval.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import (
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    Release,
    Status,
    Store,
    Weights,
    silent,
)


def holdings(knowledge: Knowledge) -> Records:
    """Every record the adversary holds: fixed, shadow and public, in that order."""
    given = (knowledge.fixed, knowledge.shadow, knowledge.public)
    held = [records for records in given if records is not None and len(records)]
    if not held:
        raise NotApplicable(
            "the adversary holds no records: fixed, shadow and public are empty", ever=True
        )
    return Records(
        torch.cat([r.inputs for r in held]), torch.cat([r.labels for r in held]), held[0].classes
    )


@dataclass(frozen=True)
class MeanRecord:
    """The average record.

    Sees: nothing of the release but how many there are.
    Assumes: records of the same distribution.
    Guarantees: the smallest expected squared error of any constant answer.
    Reference: the usual null of the field.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedMean:
        return FittedMean(holdings(knowledge).inputs.mean(0))


@dataclass(frozen=True, eq=False)
class FittedMean:
    record: Tensor

    def run(self, releases: Release) -> Reconstruction:
        count = len(releases.parameters if isinstance(releases, Weights) else releases.values)
        candidates = self.record.expand(count, 1, *self.record.shape)
        return Reconstruction(candidates, torch.zeros(count, 1), Status(Outcome.CONVERGED))


def snap_to_holdings(answer: Reconstruction, knowledge: Knowledge) -> Reconstruction:
    """Replace each candidate by the nearest record the adversary holds. Still blind to the truth."""
    held = holdings(knowledge)
    flat = held.inputs.flatten(1)
    candidates = answer.candidates.flatten(0, 1).flatten(1)
    nearest = torch.cat(
        [torch.cdist(part, flat).argmin(1) for part in torch.split(candidates, 256)]
    )
    return Reconstruction(
        candidates=held.inputs[nearest].reshape(answer.candidates.shape),
        confidence=answer.confidence,
        status=answer.status,
        cost=answer.cost,
        labels=held.labels[nearest].reshape(answer.candidates.shape[:2]),
    )
