"""Updates to be audited, from files: a gradient, two states of one model, what fine-tuning adds to a base, or
a folder of a recorded run.

Nothing is executed: safetensors, or torch files read with `weights_only=True`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Gradient, Records, Secret
from exhume.models.own.adapted import adapted
from exhume.train.local import PLAIN, Routine, Steps
from exhume.victims.against_base import Adapter, Against, read_against
from exhume.victims.payload import frozen_in, payload_from_named, payload_from_states
from exhume.victims.recorded import recorded_in
from exhume.victims.tensor_file import bare_name, read_tensors
from exhume.victims.tensor_names import check_names

__all__ = [
    "Update",
    "from_fine_tuning",
    "from_gradient",
    "from_recording",
    "from_states",
    "keep_secret",
    "read_state",
    "with_state",
]


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
    return _between(start, read_state(after), here, Steps(steps, rate, routine), records)


def _between(
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    module: nn.Module,
    steps: Steps,
    records: int | None,
) -> Update:
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
    against: Against,
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
    assert states.before is not None  # the base
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
    made = _between(start, end, here, Steps(steps, rate, routine), records)
    return replace(made, notes=(*states.notes, *made.notes))


def _adapted(
    module: nn.Module, adapter: Adapter, names: Mapping[str, str]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network whose parameters are what was trained, and where these ended."""
    layers = {layer: names[f"{layer}.weight"].removesuffix(".weight") for layer in adapter.first}
    parameters = dict(module.named_parameters())
    saved = {names[n]: t for n, t in adapter.saved.items() if names[n] in parameters}
    first = {layers[layer]: tensor for layer, tensor in adapter.first.items()}
    own = adapted(module, first, adapter.scaling, saved)
    second = {f"{layers[n]}.second": t.float() for n, t in adapter.second.items()}
    return own, {**second, **saved}


def from_recording(folder: Path, module: nn.Module, usual: Routine = PLAIN) -> list[Update]:
    """All updates of a folder that a `Recording` has written. usual: what it does not say of the training."""
    updates = []
    for one in recorded_in(folder):
        start, end = (read_state(folder / name) for name in (one.before, one.after))
        here = with_state(module, start)
        size, steps = one.batch_size or None, Steps(one.steps, one.rate, one.routine(usual))
        update = _between(start, end, here, steps, size)
        updates.append(replace(update, client=one.client, round=one.round, batch_size=size))
    return updates


def keep_secret(records: Records) -> Secret:
    """One batch (b, *shape) of private records, for scoring only."""
    return Secret(Records(records.inputs[None], records.labels[None], records.classes))


def read_state(path: Path) -> dict[str, Tensor]:
    """Names to tensors, from a file of which nothing is executed."""
    return read_tensors(path, "update")[0]


def with_state(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy at these weights; buffers that the state lacks stay as they are."""
    own = copy.deepcopy(module)
    check_names(state, own, "the state before")
    targets = dict(own.named_parameters()) | dict(own.named_buffers())
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
    return own
