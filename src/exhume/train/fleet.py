"""Training many models, a chunk at a time: bounded memory, every finished chunk kept, nothing redone.

Each chunk is one piece of work with a content address, so a killed job that is started again loads
what it had finished and ends with the same bits. The chunk size is part of what decides the bits:
choose it once (`chunk_for`), write it down, reuse it. A chunk is trained in one thread wherever that is,
so that neither the number of processes nor that of threads changes them.

What training costs before it is done: operations, and seconds at a nominal speed.

The same recipe costs the same on every machine, busy or idle. The speeds are those of one core of a common
server, on the slow side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.core.contract import (
    Architecture,
    ExhumeError,
    Key,
    Progress,
    Recipe,
    Records,
    Store,
    silent,
)
from exhume.models.own import fully_connected
from exhume.models.split.cost import multiply_adds
from exhume.store.memory import memory_free
from exhume.store.scale import Cluster, Cores, Processes, Work, run_jobs, where_now
from exhume.store.shards import address, digest
from exhume.train.functional import trained_alone
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import LARGEST_CHUNK

_PROCESS = 400 << 20  # bytes of a worker process beside what it trains
_FREE = 0.8  # of the free memory that workers may fill
_STACKED = 40e9  # operations a second and thread: MLPs, trained side by side
GENERAL = 15e9  # any other module
_LAYER = 6e-4  # seconds of overhead a step and layer, where models are trained one after another
_PRIVATE = 3.0  # times as long with clipping


def chunk_for(bytes_per_model: int, memory: int) -> int:
    """How many models to train at once within so many bytes."""
    return max(1, min(LARGEST_CHUNK, memory // max(1, bytes_per_model)))


@runtime_checkable
class _Sized(Protocol):
    """A recipe that says what memory a model takes."""

    def bytes_per_model(self, records: int) -> int: ...


@runtime_checkable
class _Finished(Protocol):
    """A recipe that trains as another one does, and then changes the weights."""

    trained_by: Recipe

    def finished(self, parameters: Tensor) -> Tensor: ...


def fleet_work(recipe: Recipe, known: int, models: int, chunk: int) -> Work:
    """What it takes to train so many models on so many records, and one each."""
    size = recipe.bytes_per_model(known + 1) if isinstance(recipe, _Sized) else 0
    each = min(chunk, models) * size
    seconds = seconds_per_model_of(recipe, known, 1)
    return Work(
        jobs=-(-models // chunk),
        seconds=None if seconds is None else seconds * models,
        fit=int(_FREE * memory_free() // (each + _PROCESS)),
    )


def train_fleet(
    recipe: Recipe,
    initial: Tensor,
    fixed: Records,
    extra: Records,
    *,
    key: Key,
    store: Store,
    chunk: int,
    stage: str,
    progress: Progress = silent,
) -> Iterator[Tensor]:
    """Yield (at most chunk, p) parameters in order; model i is trained on `fixed` and `extra[i]`.

    initial: (p,) or one row per model; extra: (s, e, *shape). Holds one chunk at a time; elsewhere
    (`scale.spread_over`) two for each that can be trained at once, saved as they arrive. What is only changed
    after training is trained, and kept, as without the change.
    """
    if isinstance(recipe, _Finished):
        before = train_fleet(
            recipe.trained_by,
            *(initial, fixed, extra),
            key=key,
            store=store,
            chunk=chunk,
            stage=stage,
            progress=progress,
        )
        yield from map(recipe.finished, before)
        return
    device = fixed.inputs.device
    if device.type != "cpu" and isinstance(where_now(), Processes):
        raise ExhumeError(
            f"device: {device.type} given, but other processes train on cpu only; --ray gives each its GPU"
        )
    total, one_start = len(extra), initial.ndim == 1
    known = (digest(initial) if one_start else "", digest(fixed))
    names: dict[int, str] = {}  # of the chunks being trained
    ready: dict[int, Tensor] = {}  # chunks that wait for their turn

    def chunks() -> Iterator[_Chunk | None]:
        for index, start in enumerate(range(0, total, chunk)):
            part = extra[start : start + chunk]
            begin = None if one_start else initial[start : start + chunk]
            inputs = (*known, digest(part), "" if begin is None else digest(begin))
            name = address("train_fleet", recipe, inputs, key, start)
            saved = store.load(name)
            if saved is None:
                names[index] = name
                yield _Chunk.of(begin, part, start, sent=bool(shared.device))
            else:
                ready[index] = saved["parameters"].to(device)
                yield None

    progress(stage, 0, total)
    far = device.type != "cpu" and isinstance(where_now(), Cluster)
    sent = (initial.cpu(), fixed.to(torch.device("cpu"))) if far else (initial, fixed)
    shared = _Shared(
        recipe, sent[0] if one_start else None, sent[1], key, device.type if far else ""
    )
    turn = 0
    spread = device.type == "cpu" and isinstance(where_now(), Cores | Processes)
    work = fleet_work(recipe, len(fixed), total, chunk) if spread and total else None
    jobs = run_jobs(
        _fit, chunks(), shared=shared, threads=1, work=work, device=shared.device or "cpu"
    )
    for index, trained in jobs:
        if trained is not None:
            store.save(names.pop(index), {"parameters": trained})
            ready[index] = trained.to(device)
        while turn in ready:
            yield ready.pop(turn)
            turn += 1
            progress(stage, min(turn * chunk, total), total)


@dataclass(frozen=True, eq=False)
class _Shared:
    """What every chunk needs."""

    recipe: Recipe
    initial: Tensor | None  # (p,)
    fixed: Records
    key: Key
    device: str = ""  # where a worker trains: its own GPU; "": where the records are


@dataclass(frozen=True, eq=False)
class _Chunk:
    """What one chunk needs besides."""

    initial: Tensor | None  # (s, p)
    extra: Records
    first: int  # index of its first model

    @staticmethod
    def of(initial: Tensor | None, extra: Records, first: int, *, sent: bool) -> _Chunk:
        """Copies, since a slice would take the whole tensor along to another machine; sent: from a GPU."""
        records = Records(extra.inputs.clone(), extra.labels.clone(), extra.classes)
        begin = None if initial is None else initial.clone()
        if sent:
            records, begin = records.to(torch.device("cpu")), None if begin is None else begin.cpu()
        return _Chunk(begin, records, first)


def _fit(shared: _Shared, chunk: _Chunk) -> Tensor:
    initial = shared.initial if chunk.initial is None else chunk.initial
    assert initial is not None  # one of the two is set
    if not shared.device:
        return shared.recipe.fit(initial, shared.fixed, chunk.extra, shared.key, chunk.first)
    device = torch.device(shared.device)  # a worker sees no GPU but its own
    fixed, extra = shared.fixed.to(device), chunk.extra.to(device)
    return shared.recipe.fit(initial.to(device), fixed, extra, shared.key, chunk.first).cpu()


def forward_operations(architecture: Architecture) -> float:
    """Floating-point operations of one record's way through the network."""
    mlp = fully_connected(architecture)
    if mlp is not None:
        return 2.0 * sum(prod(s) for s in mlp.layout.shapes if len(s) > 1)
    return 2 * multiply_adds(architecture.build(), architecture.input_shape)


def training_operations(recipe: Recipe, known: int) -> float | None:
    """To train one model on so many records and one more; None: it is the user's own training."""
    if not isinstance(recipe, FullBatch | MiniBatch):
        return None
    return 3 * _rows(recipe, known) * recipe.descent.steps * forward_operations(recipe.architecture)


def _rows(recipe: FullBatch | MiniBatch, known: int) -> int:
    """Records that a step sees."""
    return min(known + 1, recipe.order.size) if isinstance(recipe, MiniBatch) else known + 1


def stacked_seconds(architecture: Architecture, records: int) -> float:
    """For so many ways of a record through the network and back, in training."""
    speed = GENERAL if fully_connected(architecture) is None else _STACKED
    return 3 * records * forward_operations(architecture) / speed


def seconds_per_model_of(recipe: Recipe, known: int, threads: int) -> float | None:
    """To train one model on so many records and one more; None: it has to be timed."""
    if not isinstance(recipe, FullBatch | MiniBatch):
        return None
    net, steps, rows = recipe.architecture, recipe.descent.steps, _rows(recipe, known)
    clipped = isinstance(recipe, FullBatch) and recipe.privacy.clips
    seconds = stacked_seconds(net, rows * steps) / threads * (_PRIVATE if clipped else 1)
    if trained_alone(net):
        layers = [m for m in net.build().modules() if any(True for _ in m.parameters(False))]
        seconds += _LAYER * len(layers) * steps
    return seconds
