"""The updates of clients and the records behind them: from files, or made here of the user's records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.attacks.gradient.colours import outputs_and_moments
from exhume.core.contract import Architecture, ExhumeError, Gradient, Key, Records, Vocabulary
from exhume.core.evidence import Premise
from exhume.core.notation import rows_by_client
from exhume.models.own import (
    ModuleArchitecture,
    draws_numbers,
    model_named,
    module_named,
    recognised,
)
from exhume.models.own_texts import LOSSES, LanguageModel, TextModel, takes_tokens, writes_text
from exhume.readers import TextReading
from exhume.readers.adapters import BaseReference
from exhume.readers.loading import file_names
from exhume.readers.payload import Checked, DeclaredTraining, check_payload
from exhume.readers.tokens import dictionary_at
from exhume.readers.updates import (
    Update,
    from_fine_tuning,
    from_gradient,
    from_recording,
    from_states,
)
from exhume.settings import CheckpointSettings, UpdateSettings
from exhume.store.shards import digest
from exhume.train.dp import NOT_PRIVATE, Privacy
from exhume.train.functional import own_gradients
from exhume.train.local import Routine, Steps
from exhume.victims.gradient import release_updates

_ONE = Steps()
_DECOYS = 2000  # records of no update, at most
_MASKS = ("[MASK]", "<mask>")


@dataclass(frozen=True, eq=False)
class ClientUpdate:
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
        """Digests of the update, its weights, and what the model computes: the same case, the same text."""
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


@dataclass(frozen=True, eq=False)
class Truth:
    """The private records, where the owner has given them to score with."""

    private: dict[str, Records]  # by client
    others: Records
    chosen: bool = False  # by the user, not at random
    doubt: str = ""  # why silence of any attack would say nothing
    wrong: str = ""  # that these records do not give the update: silence is not about them
    strange: frozenset[str] = frozenset()  # clients whose records do not give their update
    exact: frozenset[str] = frozenset()  # clients whose records give it up to rounding
    premise: Premise | None = None


def reading_of(settings: UpdateSettings) -> TextReading:
    """How texts become records."""
    return TextReading(settings.vocabulary, settings.length, settings.padding)


def client_updates(settings: UpdateSettings, records: Records | None) -> list[ClientUpdate]:
    """Every update of the settings; raises `ExhumeError` with the assumption that does not fit."""
    made, shape = _model(settings, records)
    if isinstance(made, nn.Module):
        module = made
    elif settings.before or settings.base or Path(settings.update).is_dir():
        module = made.build()
    else:
        raise ExhumeError("before: an architecture has no weights of its own; give --before")
    cases = [client_update(u, settings, shape, records) for u in _updates(settings, module)]
    doubts = _unseeded(settings, module)
    return [replace(case, doubts=case.doubts + doubts) for case in cases]


def _unseeded(settings: UpdateSettings, module: nn.Module) -> tuple[str, ...]:
    """A doubt where the weights that the client was sent are those of a factory that draws new ones."""
    if settings.before or settings.base or Path(settings.update).is_dir():
        return ()
    again = module_named(settings.model or "", Key.from_seed(settings.seed).fold("called again"))
    other = again.state_dict()
    if all(torch.equal(value, other[name]) for name, value in module.state_dict().items()):
        return ()
    return (
        f"the factory {settings.model} draws new weights whenever it is called, so that those the client was "
        "sent are not known: give --before, or seed the factory",
    )


def model_for(settings: UpdateSettings, records: Records) -> Architecture:
    """The user's model, for updates that are made here."""
    made, shape = _model(settings, records)
    if isinstance(made, nn.Module) and is_text(made, shape):
        return text_model(made, shape[0], records, settings)
    if isinstance(made, nn.Module):
        return ModuleArchitecture.of(made, shape, settings.batch_norm)
    return made


def _model(
    settings: UpdateSettings, records: Records | None
) -> tuple[nn.Module | Architecture, tuple[int, ...]]:
    """The model that is named, and the shape of a record, as far as it fits the records."""
    made = model_named(settings.model, Key.from_seed(settings.seed))
    shape = settings.shape or (() if isinstance(made, nn.Module) else tuple(made.input_shape))
    shape = shape or (records.shape if records is not None else ())
    if not shape:
        raise ExhumeError("shape: say the shape of a record, such as --shape 1,28,28")
    if records is not None and records.shape != shape:
        raise ExhumeError(
            f"shape: {shape} given, the records of {settings.data} are {records.shape}"
        )
    check_fits(made, shape, records)
    return made, shape


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
    return Steps(settings.steps, settings.rate or 1.0, routine, privacy=claimed_clipping(settings))


def claimed_clipping(settings: UpdateSettings) -> Privacy:
    """What the client does to the gradients of its records, as it is said."""
    if not settings.dp_clip:
        return NOT_PRIVATE
    return Privacy(settings.dp_clip, settings.dp_noise)


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


def against_of(said: CheckpointSettings | UpdateSettings) -> tuple[Path, BaseReference] | None:
    """The file of fine-tuning and what it is read against; None: neither adapter nor difference is given."""
    if said.adapter:
        return Path(said.adapter), BaseReference(Path(said.base), "adapter", said.scaling or None)
    if said.delta:
        return Path(said.delta), BaseReference(Path(said.base), "delta")
    return None


def client_update(
    update: Update, settings: UpdateSettings, shape: tuple[int, ...], records: Records | None = None
) -> ClientUpdate:
    """One update, ready to be attacked. records: the set that holds the private ones."""
    if is_text(update.module, shape):
        return _text_case(update, settings, shape[0], records)
    network = ModuleArchitecture.of(update.module, shape, settings.batch_norm)
    checked = _checked(update, settings, shape)
    architecture = recognised(network)
    gradient = replace(update.payload, layout=architecture.layout)
    return _read(update, settings, architecture, gradient, checked)


def _text_case(
    update: Update, settings: UpdateSettings, length: int, records: Records | None
) -> ClientUpdate:
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
    said = DeclaredTraining(
        settings.reduction,
        settings.batch_norm,
        size,
        update.count,
        update.rate,
        update.steps.routine.loss,
        clipped=settings.dp_clip > 0,
        noisy=settings.dp_noise > 0,
    )
    update.module.train(settings.batch_norm == "train")
    return check_payload(update.payload, update.module, said, shape, vocabulary)


def _read(
    update: Update,
    settings: UpdateSettings,
    architecture: Architecture,
    gradient: Gradient,
    checked: Checked,
) -> ClientUpdate:
    """A sum is made the mean that attacks take it for, where the number of records is known."""
    size, summed = settings.batch_size or update.batch_size, settings.reduction == "sum"
    share, steps = 1, update.steps
    if summed and size:
        share = min(size, steps.routine.local_batch or size)
        steps = steps.of_mean(share)
    values = gradient.values / (share if steps.routine.optimiser == "sgd" else 1)
    parts = gradient.layout.split(gradient.values[0])
    frozen = tuple(name for name, part in parts.items() if not bool(part.any()))
    return ClientUpdate(
        update.client,
        update.round,
        replace(gradient, values=values),
        architecture,
        size,
        replace(steps, frozen=frozen, privacy=claimed_clipping(settings)),
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
    if settings.dp_noise and update.steps.several:
        return False  # the noise of one step moves the next
    if settings.dp_clip and update.steps.routine.local_batch:
        return False  # the order of batches is found out only where nothing is clipped
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
    different, count, source = list(dict.fromkeys(clients)), len(records), settings.data or ""
    if not settings.records and len(different) == 1:
        named = {different[0]: list(range(count))}
    else:  # rows by the names of their files, counted from the folder or as the folder is written
        rows = {name: row for row, name in enumerate(file_names(source) if source else [])}
        rows |= {(Path(source) / name).as_posix(): row for name, row in rows.items()}
        named = rows_by_client(settings.records, "records", different, rows)
    used = torch.zeros(count, dtype=torch.bool)
    for index in named.values():
        if not index or min(index) < 0 or max(index) >= count or len(set(index)) < len(index):
            raise ExhumeError(
                f"records: different indices from 0 to {count - 1} are needed, got {index[:8]}"
            )
        used[torch.tensor(index)] = True
    private = {client: records[torch.tensor(index)] for client, index in named.items()}
    return private, records[~used]


def in_torchvision_order(
    settings: UpdateSettings, records: Records, clients: Sequence[str]
) -> dict[str, Records]:
    """Each client's records if its indices count the files of a folder of images as torchvision sorts them.

    Nothing where that is the same order, or where the records are not those of such a folder.
    """
    names = file_names(settings.data) if settings.data and settings.records else []
    rows = sorted(range(len(names)), key=lambda row: Path(names[row]).parts)
    if len(names) != len(records) or rows == list(range(len(names))):
        return {}
    return private_records(settings, records[torch.tensor(rows)], clients)[0]


# Texts


def is_text(made: nn.Module | Architecture, shape: tuple[int, ...]) -> bool:
    """By what it takes: tokens go into an embedding of it."""
    return isinstance(made, nn.Module) and len(shape) == 1 and takes_tokens(made, shape[0])


def check_fits(
    made: nn.Module | Architecture, shape: tuple[int, ...], records: Records | None
) -> None:
    """Refuse numbers for a model of texts, and texts for a model of numbers."""
    tokens = records is not None and records.vocabulary is not None
    if records is not None and not tokens and is_text(made, shape):
        raise ExhumeError(
            "data: it holds numbers, but the model takes tokens; give texts, input_ids, or an array called "
            "tokens of whole numbers"
        )
    if tokens and isinstance(made, nn.Module) and not is_text(made, shape):
        TextModel.of(made, shape[0])  # says why
    if tokens and not isinstance(made, nn.Module):
        raise ExhumeError("data: it holds texts, but the model takes numbers")


def text_model(
    module: nn.Module, length: int, records: Records | None, settings: UpdateSettings
) -> TextModel:
    """Padding and mask as the settings say, or the vocabulary, or the model."""
    filler = None if settings.padding < 0 else settings.padding
    known = records.vocabulary if records is not None else None
    if filler is None and known is not None:
        filler = known.padding
    if settings.loss in LOSSES:
        mask = _mask(settings, known) if settings.loss == "masked" else None
        net: TextModel = LanguageModel.of(module, length, filler, settings.loss, mask)
    elif writes_text(module, length):
        raise ExhumeError(
            "loss: the model answers for every place of a text: say --loss next-token or --loss masked"
        )
    else:
        net = TextModel.of(module, length, filler)
    if records is not None and int(records.inputs.max()) >= net.vocabulary:
        odd = int((records.inputs >= net.vocabulary).any(1).nonzero()[0, 0])
        raise ExhumeError(
            f"data: record {odd} has the token {int(records.inputs[odd].max())}, the model's embedding has "
            f"{net.vocabulary} rows"
        )
    return net


def _mask(settings: UpdateSettings, known: Vocabulary | None) -> int | None:
    if settings.mask >= 0:
        return settings.mask
    if (known is None or not known.words) and settings.vocabulary:
        known = dictionary_at(settings.vocabulary).vocabulary(None)
    words = known.words if known is not None else ()
    return next((words.index(name) for name in _MASKS if name in words), None)


def vocabulary_of(settings: UpdateSettings, records: Records | None) -> Vocabulary:
    """What the numbers mean; refuses texts whose words were numbered here: the sender's model has others."""
    if records is None or records.vocabulary is None:
        known = dictionary_at(settings.vocabulary) if settings.vocabulary else None
        return known.vocabulary(None) if known else Vocabulary()
    if not records.vocabulary.given and not settings.made:
        raise ExhumeError(
            "vocabulary: say with --vocabulary how the words of the texts are numbered, as the update's "
            "model was trained with its own numbers"
        )
    return records.vocabulary


# Updates that are made here


def simulate_updates(
    settings: UpdateSettings, architecture: Architecture, records: Records, key: Key
) -> tuple[list[ClientUpdate], Truth]:
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
    cases, theirs = updates_of_batches(
        architecture,
        start,
        records[order[:needed]],
        settings.batch_size,
        steps=steps_of(settings),
        key=key.fold("local"),
    )
    return cases, Truth(theirs, records[order[needed : needed + _DECOYS]])


def updates_of_batches(
    architecture: Architecture,
    start: Tensor,
    private: Records,
    size: int,
    *,
    steps: Steps = _ONE,
    key: Key | None = None,
    statistics: Collection[str] = (),
) -> tuple[list[ClientUpdate], dict[str, Records]]:
    """The updates of batches of so many records each, one after another, and whose records they are.

    statistics: names of what batch norm saw that is sent beside the update.
    """
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
    still = values
    if steps.privacy.noise:
        still = _gradients(architecture, start, batches, steps.still(), key or Key.from_seed(0))
    left = [noise_beside(*pair) for pair in zip(values, still, strict=True)]
    seen = _moments(architecture, start, batches, statistics)
    cases = [
        ClientUpdate(
            client=f"batch {place + 1}",
            round=0,
            gradient=Gradient(
                values[place : place + 1].detach(), simple.layout, start, seen[place]
            ),
            architecture=simple,
            batch_size=size,
            steps=steps,
            averaged=True,
            checked=("made here",),
            vocabulary=private.vocabulary,
            noise=left[place][0],
            unexplained=left[place][1],
        )
        for place in range(len(values))
    ]
    theirs = {
        case.client: private[place * size : (place + 1) * size] for place, case in enumerate(cases)
    }
    return cases, theirs


def _moments(
    architecture: Architecture, start: Tensor, batches: Records, statistics: Collection[str]
) -> list[dict[str, Tensor]]:
    """What batch norm sees of each batch, under these names."""
    if not statistics:
        return [{} for _ in batches.labels]
    module, named = architecture.build(), architecture.layout.split(start.detach())
    seen = [outputs_and_moments(module, named, batch, statistics)[1] for batch in batches.inputs]
    return [{name: told.detach()[None] for name, told in one.items()} for one in seen]


def noise_beside(sent: Tensor, still: Tensor) -> tuple[float, float]:
    """What was added to an update (p,), relative to it, and 1 - cosine of the two."""
    if sent is still or torch.equal(sent, still):
        return 0.0, 0.0
    apart = float((sent - still).norm() / still.norm().clamp_min(1e-30))
    return apart, 1 - float(torch.cosine_similarity(sent, still, dim=0))


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
