"""Updates that are made here: what clients of this model would send, from batches of the user's records."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from exhume.auditing.updates.lineups import Truth
from exhume.auditing.updates.reading import Case, steps_of
from exhume.core.contract import Architecture, ExhumeError, Gradient, Key, Records
from exhume.models.own import recognised
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.settings import UpdateSettings
from exhume.train.functional import own_gradients
from exhume.train.local import Steps
from exhume.victims.gradient import release_updates

__all__ = ["cases_of", "made_updates"]

_ONE = Steps()
_DECOYS = 2000  # records of no update, at most


def made_updates(
    settings: UpdateSettings, architecture: Architecture, records: Records, key: Key
) -> tuple[list[Case], Truth]:
    """What the clients of `made` batches send that train as is said, at the model's first weights."""
    if records.vocabulary is not None and not isinstance(architecture, TextModel):
        raise ExhumeError(
            'update: texts need a model of your own that takes them; write model = "model.py:build"'
        )
    needed = settings.made * settings.batch_size
    if needed >= len(records):
        raise ExhumeError(
            f"made: {settings.made} updates of {settings.batch_size} records need {needed}, and others "
            f"to compare with; there are {len(records)}"
        )
    order = torch.randperm(len(records), generator=key.fold("batches").generator())
    start = architecture.initial(key.fold("start"))
    cases, theirs = cases_of(
        architecture,
        start,
        records[order[:needed]],
        settings.batch_size,
        steps=steps_of(settings),
        key=key.fold("local"),
    )
    return cases, Truth(theirs, records[order[needed : needed + _DECOYS]])


def cases_of(
    architecture: Architecture,
    start: Tensor,
    private: Records,
    size: int,
    *,
    steps: Steps = _ONE,
    key: Key | None = None,
) -> tuple[list[Case], dict[str, Records]]:
    """The updates of batches of so many records each, one after another, and whose records they are."""
    trained = private
    if isinstance(architecture, LanguageModel) and architecture.loss == "masked":
        hidden = architecture.masked(private.inputs, Key.from_seed(0).fold("masks"))
        trained = replace(private, inputs=hidden)
        private = replace(private, inputs=architecture.fed(hidden))  # what can come back
    shape = (len(private) // size, size)
    batches = Records(
        trained.inputs.reshape(*shape, *private.shape),
        private.labels.reshape(shape),
        private.classes,
        private.vocabulary,
    )
    values = _gradients(architecture, start, batches, steps, key or Key.from_seed(0))
    simple = recognised(architecture)
    cases = [
        Case(
            client=f"batch {place + 1}",
            round=0,
            gradient=Gradient(values[place : place + 1].detach(), simple.layout, start),
            architecture=simple,
            batch_size=size,
            steps=steps,
            averaged=True,
            checked=("made here",),
            vocabulary=private.vocabulary,
        )
        for place in range(len(values))
    ]
    theirs = {
        case.client: private[place * size : (place + 1) * size] for place, case in enumerate(cases)
    }
    return cases, theirs


def _gradients(
    architecture: Architecture, start: Tensor, batches: Records, steps: Steps, key: Key
) -> Tensor:
    """(r, p) of the mean loss; of a text model one by one, as it may do what cannot be done side by side."""
    local = steps.of(architecture)
    if isinstance(architecture, TextModel):
        return local.updates(start, batches, key)
    if steps != replace(_ONE, rate=steps.rate):
        return release_updates(local, start, batches, key)[0].values
    count, size = batches.labels.shape
    return own_gradients(architecture, start.expand(count, -1), batches) / size
