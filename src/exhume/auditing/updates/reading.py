"""From the settings of an audit to what is attacked: checked updates, and the private records behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.auditing.fine_tuned import against_of
from exhume.auditing.updates.text import check_fits, is_text, text_model, vocabulary_of
from exhume.core.contract import Architecture, ExhumeError, Gradient, Key, Records, Vocabulary
from exhume.core.notation import rows_by_client
from exhume.models.own import ModuleArchitecture, draws_numbers, model_named, recognised
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.readers import Reading, file_names
from exhume.readers.payload import Checked, Said, check_payload
from exhume.readers.updates import (
    Update,
    from_fine_tuning,
    from_gradient,
    from_recording,
    from_states,
)
from exhume.settings import UpdateSettings
from exhume.store.shards import digest
from exhume.train.local import Routine, Steps

__all__ = ["Case", "cases_for", "model_for", "private_records", "reading_of", "steps_of"]


@dataclass(frozen=True, eq=False)
class Case:
    """One update, ready to be attacked."""

    client: str
    round: int
    gradient: Gradient  # (1, p), of a mean loss where the batch size is known
    architecture: Architecture  # recognised where it could be
    batch_size: int | None
    steps: Steps
    averaged: bool
    checked: tuple[str, ...]  # what could be checked about it
    notes: tuple[str, ...] = ()  # how it was read
    vocabulary: Vocabulary | None = None  # of a text model
    doubts: tuple[str, ...] = ()  # sentences: what speaks against what is said about it
    repeatable: bool = (
        True  # training on the same records gives it again: no dropout, no unknown start
    )
    unexplained: float = 0.0  # of the update, by the client's own records: 1 - cosine
    noise: float = 0.0  # beside what these records give, relative to it

    def start(self) -> Tensor:
        """(p,) the weights the client was sent."""
        return self.gradient.at if self.gradient.at.ndim == 1 else self.gradient.at[0]

    def fingerprint(self) -> str:
        """Of the update, its weights, and the function the model computes: the same case, the same text."""
        drawn = torch.rand(
            2, *self.architecture.input_shape, generator=Key.from_seed(0).generator()
        )
        if isinstance(self.architecture, TextModel):
            drawn = (drawn * self.architecture.vocabulary).floor()
        named = self.architecture.layout.split(self.start())
        outputs = functional_call(self.architecture.build(), named, (drawn.to(self.start()),))
        seen = [values for _, values in sorted(self.gradient.statistics.items())]
        parts = (self.gradient.values, self.gradient.at, outputs, *seen)
        return " ".join(digest(part) for part in parts)


def reading_of(settings: UpdateSettings) -> Reading:
    """How texts become records."""
    return Reading(settings.vocabulary, settings.length, settings.padding)


def cases_for(settings: UpdateSettings, records: Records | None) -> list[Case]:
    """Every update of the settings; raises `ExhumeError` with the assumption that does not fit."""
    made = model_named(settings.model, Key.from_seed(settings.seed))
    shape = _shape(settings, made, records)
    check_fits(made, shape, records)
    if isinstance(made, nn.Module):
        module = made
    elif settings.before or settings.base or Path(settings.update).is_dir():
        module = made.build()
    else:
        raise ExhumeError("before: an architecture has no weights of its own; give --before")
    if is_text(made, shape):
        updates = _updates(settings, module)
        return [_text_case(update, settings, shape[0], records) for update in updates]
    return [_case(update, settings, shape) for update in _updates(settings, module)]


def model_for(settings: UpdateSettings, records: Records) -> Architecture:
    """The user's model, for updates that are made here."""
    made = model_named(settings.model, Key.from_seed(settings.seed))
    shape = _shape(settings, made, records)
    check_fits(made, shape, records)
    if isinstance(made, nn.Module) and is_text(made, shape):
        return text_model(made, shape[0], records, settings)
    if isinstance(made, nn.Module):
        return ModuleArchitecture.of(made, shape, settings.batch_norm)
    return made


def _shape(
    settings: UpdateSettings, made: nn.Module | Architecture, records: Records | None
) -> tuple[int, ...]:
    own = () if isinstance(made, nn.Module) else tuple(made.input_shape)
    found = settings.shape or own or (records.shape if records is not None else ())
    if not found:
        raise ExhumeError("shape: say the shape of a record, such as --shape 1,28,28")
    if records is not None and records.shape != found:
        raise ExhumeError(
            f"shape: {found} given, the records of {settings.data} are {records.shape}"
        )
    return found


def steps_of(settings: UpdateSettings) -> Steps:
    """How the client trained, as it is said."""
    routine = Routine(
        settings.epochs,
        settings.local_batch,
        settings.shuffle,
        settings.optimiser,
        settings.momentum,
        settings.weight_decay,
        eps=settings.eps,
        schedule=settings.schedule,
        loss=settings.loss,
    )
    return Steps(settings.steps, settings.rate or 1.0, routine)


def _updates(settings: UpdateSettings, module: nn.Module) -> list[Update]:
    before = Path(settings.before) if settings.before else None
    routine, size = steps_of(settings).routine, settings.batch_size or None
    if tuned := against_of(settings):
        return [
            from_fine_tuning(
                *tuned,
                module,
                rate=settings.rate,
                steps=settings.steps,
                routine=routine,
                records=size,
            )
        ]
    if settings.after:
        assert before is not None  # the settings see to it
        return [
            from_states(
                before,
                Path(settings.after),
                module,
                rate=settings.rate,
                steps=settings.steps,
                routine=routine,
                records=size,
            )
        ]
    path = Path(settings.update)
    if path.is_dir():
        return from_recording(path, module, routine)
    return [from_gradient(path, module, before, loss=settings.loss)]


def _case(update: Update, settings: UpdateSettings, shape: tuple[int, ...]) -> Case:
    own = ModuleArchitecture.of(update.module, shape, settings.batch_norm)
    checked = _checked(update, settings, shape)
    architecture = recognised(own)
    gradient = replace(update.payload, layout=architecture.layout)
    return _read(update, settings, architecture, gradient, checked)


def _text_case(
    update: Update, settings: UpdateSettings, length: int, records: Records | None
) -> Case:
    net = text_model(update.module, length, records, settings)
    checked = _checked(update, settings, (length,), net.vocabulary)
    at = net.trained(update.payload.at)
    at = at if at.dtype == torch.float64 else at.float()
    gradient = Gradient(net.trained(update.payload.values).to(at.dtype), net.layout, at)
    case = _read(update, settings, net, gradient, checked)
    return replace(case, vocabulary=vocabulary_of(settings, records))


def _checked(
    update: Update, settings: UpdateSettings, shape: tuple[int, ...], vocabulary: int = 0
) -> Checked:
    """Its module is left in the mode that it was trained in."""
    size = settings.batch_size or update.batch_size
    said = Said(
        settings.reduction,
        settings.batch_norm,
        size,
        update.count,
        update.rate,
        update.steps.routine.loss,
    )
    update.module.train(settings.batch_norm == "train")
    return check_payload(update.payload, update.module, said, shape, vocabulary)


def _read(
    update: Update,
    settings: UpdateSettings,
    architecture: Architecture,
    gradient: Gradient,
    checked: Checked,
) -> Case:
    """A sum is made the mean that attacks take it for, where the number of records is known."""
    size, summed = settings.batch_size or update.batch_size, settings.reduction == "sum"
    share, steps = 1, update.steps
    if summed and size:
        share = min(size, steps.routine.local_batch or size)
        steps = steps.of_mean(share)
    values = gradient.values / (share if steps.routine.optimiser == "sgd" else 1)
    parts = gradient.layout.split(gradient.values[0])
    frozen = tuple(name for name, part in parts.items() if not bool(part.any()))
    return Case(
        update.client,
        update.round,
        replace(gradient, values=values),
        architecture,
        size,
        replace(steps, frozen=frozen),
        averaged=not summed or bool(size),
        checked=checked.checked,
        notes=update.notes,
        doubts=checked.doubts,
        repeatable=_repeatable(update, settings, architecture),
    )


def _repeatable(update: Update, settings: UpdateSettings, architecture: Architecture) -> bool:
    """An adapter's A is known as it ended, not as it began; dropout draws numbers that nobody knows."""
    if settings.adapter and update.count > 1:
        return False
    kind = torch.long if isinstance(architecture, TextModel) else update.payload.at.dtype
    probes = torch.ones(3, *architecture.input_shape, dtype=kind)
    module = update.module
    if isinstance(architecture, LanguageModel):  # it may return its outputs by name
        module = architecture.build().train(update.module.training)
    return settings.batch_norm == "eval" or not draws_numbers(module, probes)


# Private records


def private_records(
    settings: UpdateSettings, records: Records, clients: Sequence[str]
) -> tuple[dict[str, Records], Records]:
    """Each client's records, and all others of the set.

    `records` of the settings: as `rows_by_client` reads them, files of an image folder by name, too.
    Empty: the whole set is the one client's batch.
    """
    named = _indices(settings, len(records), clients)
    used = torch.zeros(len(records), dtype=torch.bool)
    for index in named.values():
        used[index] = True
    return {client: records[index] for client, index in named.items()}, records[~used]


def _indices(settings: UpdateSettings, count: int, clients: Sequence[str]) -> dict[str, Tensor]:
    different = list(dict.fromkeys(clients))
    if not settings.records and len(different) == 1:
        return {different[0]: torch.arange(count)}
    named = rows_by_client(settings.records, "records", different, _names(settings.data or ""))
    return {client: _within(index, count) for client, index in named.items()}


def _names(source: str) -> dict[str, int]:
    """Rows by the names of their files, counted from the folder or as the folder is written."""
    rows = {name: row for row, name in enumerate(file_names(source) if source else [])}
    return rows | {(Path(source) / name).as_posix(): row for name, row in rows.items()}


def _within(index: list[int], count: int) -> Tensor:
    if not index or min(index) < 0 or max(index) >= count or len(set(index)) < len(index):
        raise ExhumeError(
            f"records: different indices from 0 to {count - 1} are needed, got {index[:8]}"
        )
    return torch.tensor(index)
