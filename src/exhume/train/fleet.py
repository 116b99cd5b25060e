"""Training many models, a chunk at a time: bounded memory, every finished chunk kept, nothing redone.

Each chunk is one piece of work with a content address, so a killed job that is started again loads
what it had finished and ends with the same bits. The chunk size is part of what decides the bits:
choose it once (`chunk_for`), write it down, reuse it. A chunk is trained in one thread wherever that is,
so that neither the number of processes nor that of threads changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Progress, Recipe, Records, Store, silent
from exhume.data.memory_guard import memory_free
from exhume.store.scale import Cluster, Cores, Processes, Work, run_jobs, where_now
from exhume.store.shards import address, digest
from exhume.train.blocks import LARGEST_CHUNK
from exhume.train.cost import seconds_per_model_of

__all__ = ["LARGEST_CHUNK", "chunk_for", "fleet_work", "train_fleet"]

_PROCESS = 400 << 20  # bytes of a worker process beside what it trains
_FREE = 0.8  # of the free memory that workers may fill


def chunk_for(bytes_per_model: int, memory: int) -> int:
    """How many models to train at once within so many bytes."""
    return max(1, min(LARGEST_CHUNK, memory // max(1, bytes_per_model)))


@runtime_checkable
class _Sized(Protocol):
    """A recipe that says what memory a model takes."""

    def bytes_per_model(self, records: int) -> int: ...


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
    (`scale.spread_over`) two for each that can be trained at once, saved as they arrive.
    """
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
        own = Records(extra.inputs.clone(), extra.labels.clone(), extra.classes)
        begin = None if initial is None else initial.clone()
        if sent:
            own, begin = own.to(torch.device("cpu")), None if begin is None else begin.cpu()
        return _Chunk(begin, own, first)


def _fit(shared: _Shared, chunk: _Chunk) -> Tensor:
    initial = shared.initial if chunk.initial is None else chunk.initial
    assert initial is not None  # one of the two is set
    if not shared.device:
        return shared.recipe.fit(initial, shared.fixed, chunk.extra, shared.key, chunk.first)
    device = torch.device(shared.device)  # a worker sees no GPU but its own
    fixed, extra = shared.fixed.to(device), chunk.extra.to(device)
    return shared.recipe.fit(initial.to(device), fixed, extra, shared.key, chunk.first).cpu()
