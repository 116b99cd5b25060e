"""Updates to be audited, from files: a gradient, two states of one model, what fine-tuning adds to a base, or
a folder of a recorded run.

Nothing is executed: safetensors, or torch files read with `weights_only=True`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Gradient
from exhume.core.files import object_at
from exhume.core.typed_json import from_json
from exhume.readers.adapters import Adapter, BaseReference, adapted, read_against
from exhume.readers.payload import frozen_in, payload_from_named, payload_from_states
from exhume.readers.tensors import bare_name, check_names, read_tensors
from exhume.store.shards import write_atomically
from exhume.train.local import PLAIN, Routine, Steps

_ONE = Steps()


@dataclass(frozen=True, eq=False)
class Update:
    """One client's update, and the module at the weights it was taken at."""

    payload: Gradient  # one release
    module: nn.Module
    client: str = "client"
    round: int = 1
    rate: float | None = None  # how far one step moves on the average; None: a plain gradient
    steps: Steps = _ONE
    batch_size: int | None = None
    notes: tuple[str, ...] = ()  # how it was read
    count: int = 1  # steps behind it


def from_gradient(
    path: Path, module: nn.Module, before: Path | None = None, loss: str = PLAIN.loss
) -> Update:
    """A gradient in a file, taken at `before` or at the module's present weights."""
    here = module if before is None else with_state(module, read_state(before))
    payload = payload_from_named(read_state(path), here)
    steps = Steps(routine=Routine(loss=loss))
    return Update(payload, here, steps=steps, notes=frozen_in(payload))


def from_states(
    before: Path,
    after: Path,
    module: nn.Module,
    *,
    rate: float,
    steps: int = 1,
    routine: Routine = PLAIN,
    records: int | None = None,
) -> Update:
    """The states before and after a client's training. records: that it has; None: not said."""
    start = read_state(before)
    here = with_state(module, start)
    return between_states(start, read_state(after), here, Steps(steps, rate, routine), records)


def between_states(
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    module: nn.Module,
    steps: Steps,
    records: int | None,
) -> Update:
    """What a client's training made of `start`, which the module is at."""
    payload = payload_from_states(
        start, end, module, steps.rate, steps.count, routine=steps.routine, records=records
    )
    rates = steps.rates(records)
    mean = steps.routine.scale(rates) / len(rates)
    notes = frozen_in(payload)
    if said := str(steps.routine):
        notes = (f"The update is the average step of the client's training ({said}).", *notes)
    return Update(payload, module, rate=mean, steps=steps, notes=notes, count=len(rates))


def from_fine_tuning(
    path: Path,
    against: BaseReference,
    module: nn.Module,
    *,
    rate: float,
    steps: int = 1,
    routine: Routine = PLAIN,
    records: int | None = None,
) -> Update:
    """A difference or a LoRA adapter, made by the client's training from the base.

    Of an adapter, B is the update, from 0. A is taken as it ended: after one step, as it began.
    """
    states = read_against(path, against)
    what = "delta" if states.adapter is None else "adapter"
    names = {bare_name(name): name for name in module.state_dict()}
    unknown = [name for name in states.after if name not in names]
    if unknown:
        raise ExhumeError(f"{what}: {unknown[0]} is no tensor of the model ({len(unknown)} such)")
    start = {names[name]: tensor for name, tensor in states.before.items()}
    here = with_state(module, start)
    if states.adapter is None:
        end = {names[name]: tensor for name, tensor in states.after.items()}
    else:
        here, end = _adapted(here, states.adapter, names)
        start = {name: tensor.detach() for name, tensor in here.named_parameters()}
    made = between_states(start, end, here, Steps(steps, rate, routine), records)
    return replace(made, notes=(*states.notes, *made.notes))


def _adapted(
    module: nn.Module, adapter: Adapter, names: Mapping[str, str]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network whose parameters are what was trained, and where these ended."""
    layers = {layer: names[f"{layer}.weight"].removesuffix(".weight") for layer in adapter.first}
    parameters = dict(module.named_parameters())
    saved = {names[n]: t for n, t in adapter.saved.items() if names[n] in parameters}
    first = {layers[layer]: tensor for layer, tensor in adapter.first.items()}
    turned = [layers[layer] for layer in adapter.turned]
    own = adapted(module, first, adapter.scaling, saved, turned)
    second = {f"{layers[n]}.second.weight": t.float() for n, t in adapter.second.items()}
    return own, {**second, **saved}


def from_recording(folder: Path, module: nn.Module, usual: Routine = PLAIN) -> list[Update]:
    """All updates of a folder that a `Recording` has written. usual: what it does not say of the training."""
    updates = []
    for record in recorded_in(folder):
        start, end = (read_state(folder / name) for name in (record.before, record.after))
        here = with_state(module, start)
        size = record.batch_size or None
        steps = Steps(record.steps, record.rate, record.routine(usual))
        update = between_states(start, end, here, steps, size)
        updates.append(replace(update, client=record.client, round=record.round, batch_size=size))
    return updates


def read_state(path: Path) -> dict[str, Tensor]:
    """Names to tensors, from a file of which nothing is executed."""
    return read_tensors(path, "update")[0]


def with_state(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy at these weights; buffers that the state lacks stay as they are."""
    network = copy.deepcopy(module)
    check_names(state, network, "the state before")
    targets = dict(network.named_parameters()) | dict(network.named_buffers())
    with torch.no_grad():
        for name, target in targets.items():
            if name not in state:
                continue
            if state[name].shape != target.shape:
                raise ExhumeError(
                    f"parameter {name}: shape {tuple(state[name].shape)} given, "
                    f"{tuple(target.shape)} expected"
                )
            target.copy_(state[name])
    return network


_SCHEMA = 1
_TRAINING = ("epochs", "local_batch", "momentum", "weight_decay", "optimiser", "schedule")


@dataclass(frozen=True)
class Recorded:
    """One client's update of one round; `before` and `after` are file names in the same folder."""

    round: int
    client: str
    before: str
    after: str
    rate: float  # learning rate of the client's SGD
    steps: int  # local steps
    batch_size: int  # records behind the update; 0: unknown
    epochs: int = 0  # over the records, in place of `steps`; 0: not said
    local_batch: int = 0  # records of a step within an epoch; 0: not said
    momentum: float | None = None  # None: not said
    weight_decay: float | None = None
    optimiser: str = ""  # empty: not said
    schedule: str = ""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ExhumeError(f"rate: must be above 0, got {self.rate}")
        if self.steps < 1 or self.batch_size < 0:
            raise ExhumeError(
                f"steps, batch_size: must be at least 1 and 0, got {self.steps} and {self.batch_size}"
            )
        self.routine(PLAIN)  # complains of what cannot be
        if not re.fullmatch(r"[\w-]+", self.client):
            raise ExhumeError(f"client: {self.client!r} must be of letters, digits, - and _")

    def routine(self, usual: Routine) -> Routine:
        """How the client trained: as is said here, else as usual."""
        silent = {"epochs": 0, "local_batch": 0, "optimiser": "", "schedule": ""}
        said: dict[str, Any] = {name: getattr(self, name) for name in _TRAINING}
        return replace(usual, **{n: v for n, v in said.items() if v != silent.get(n)})


@dataclass(frozen=True)
class Recording:
    """A folder that updates are written to; only its owner can read it."""

    folder: Path

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
        except OSError as error:
            raise ExhumeError(
                f"cannot record in {self.folder}: {error.strerror or error}"
            ) from error

    def write(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        round: int,  # noqa: A002 - the word of federated learning
        client: str,
        rate: float,
        steps: int = 1,
        batch_size: int = 0,
        routine: Routine | None = None,
    ) -> Recorded:
        """The states first, then the JSON that names them: what is listed is there in full.

        routine: how the client trained, if it is known.
        """
        name = f"round-{round}-client-{client}"
        content = _state_bytes(before)
        start = f"sent-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
        end = f"{name}.safetensors"
        record = Recorded(round, client, start, end, float(rate), steps, batch_size)
        if routine is not None:
            training: dict[str, Any] = {name: getattr(routine, name) for name in _TRAINING}
            record = replace(record, **training)
        if not (self.folder / start).exists():  # its name is its content
            write_atomically(self.folder / start, content)
        write_atomically(self.folder / record.after, _state_bytes(after))
        text = json.dumps({"schema": _SCHEMA, **asdict(record)}, indent=2)
        write_atomically(self.folder / f"{name}.json", f"{text}\n".encode())
        return record


def recorded_in(folder: Path) -> list[Recorded]:
    """All updates of a folder, by round and client."""
    records = [_read_record(path) for path in sorted(folder.glob("round-*-client-*.json"))]
    if not records:
        raise ExhumeError(f"update: {folder} holds no recorded update")
    return sorted(records, key=lambda record: (record.round, record.client))


def _state_bytes(state: Mapping[str, Tensor]) -> bytes:
    content: bytes = save({n: t.detach().cpu().contiguous() for n, t in state.items()})
    return content


def _read_record(path: Path) -> Recorded:
    content = object_at(path)
    if content.pop("schema", None) != _SCHEMA:
        raise ExhumeError(f"{path}: not of schema {_SCHEMA}, which this version reads")
    record = from_json(Recorded, content, str(path))
    for name in (record.before, record.after):
        if Path(name).name != name:
            raise ExhumeError(f"{path}: {name!r} lies outside the folder")
    return record
