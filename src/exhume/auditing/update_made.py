"""Updates that are made here: what clients of this model would send, from batches of the user's records."""

from __future__ import annotations

import torch

from exhume.auditing.proofs import Steps
from exhume.auditing.update_found import Truth
from exhume.auditing.update_reading import Case
from exhume.auditing.update_settings import UpdateSettings
from exhume.contract import Architecture, ExhumeError, Gradient, Key, Records
from exhume.models.module import recognised
from exhume.train.functional import own_gradients

__all__ = ["made_updates"]

_DECOYS = 2000  # records of no update, at most


def made_updates(
    settings: UpdateSettings, architecture: Architecture, records: Records, key: Key
) -> tuple[list[Case], Truth]:
    """One gradient of the mean loss for each of `made` batches, at the model's first weights."""
    needed = settings.made * settings.batch_size
    if needed >= len(records):
        raise ExhumeError(
            f"made: {settings.made} updates of {settings.batch_size} records need {needed}, and others "
            f"to compare with; there are {len(records)}"
        )
    order = torch.randperm(len(records), generator=key.fold("batches").generator())
    private = records[order[:needed]]
    start = architecture.initial(key.fold("start"))
    shape = (settings.made, settings.batch_size)
    batches = Records(
        private.inputs.reshape(*shape, *records.shape),
        private.labels.reshape(shape),
        records.classes,
    )
    parameters = start.expand(settings.made, -1)
    values = own_gradients(architecture, parameters, batches) / settings.batch_size
    simple = recognised(architecture)
    cases = [
        Case(
            client=f"batch {place + 1}",
            round=0,
            gradient=Gradient(values[place : place + 1].detach(), simple.layout, start),
            architecture=simple,
            batch_size=settings.batch_size,
            steps=Steps(1, 1.0),
            averaged=True,
            checked=("made here",),
        )
        for place in range(settings.made)
    ]
    theirs = {
        case.client: Records(batches.inputs[place], batches.labels[place], records.classes)
        for place, case in enumerate(cases)
    }
    return cases, Truth(theirs, records[order[needed : needed + _DECOYS]])
