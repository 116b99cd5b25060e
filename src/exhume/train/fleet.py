"""Training many models, a chunk at a time: bounded memory, every finished chunk kept, nothing redone.

Each chunk is one piece of work with a content address, so a killed job that is started again loads
what it had finished and ends with the same bits. The chunk size is part of what decides the bits:
choose it once (`chunk_for`), write it down, reuse it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from exhume.contract import ExhumeError, Key, Progress, Recipe, Records, Store, silent
from exhume.scale import HERE, Cluster, run_jobs, where_now
from exhume.store import address, digest

__all__ = ["LARGEST_CHUNK", "chunk_for", "train_fleet"]

LARGEST_CHUNK = 64  # beyond this a stack falls out of the processor's caches and gains nothing


def chunk_for(bytes_per_model: int, memory: int) -> int:
    """How many models to train at once within so many bytes."""
    return max(1, min(LARGEST_CHUNK, memory // max(1, bytes_per_model)))


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
    if fixed.inputs.device.type != "cpu" and where_now() != HERE:
        raise ExhumeError(
            f"device: {fixed.inputs.device.type} given, but "
            f"{'a Ray cluster trains' if isinstance(where_now(), Cluster) else 'other processes train'} "
            "on cpu only"
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
                yield _Chunk.of(begin, part, start)
            else:
                ready[index] = saved["parameters"].to(fixed.inputs.device)
                yield None

    progress(stage, 0, total)
    shared = _Shared(recipe, initial if one_start else None, fixed, key)
    turn = 0
    for index, trained in run_jobs(_fit, chunks(), shared=shared):
        if trained is not None:
            store.save(names.pop(index), {"parameters": trained})
            ready[index] = trained
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


@dataclass(frozen=True, eq=False)
class _Chunk:
    """What one chunk needs besides."""

    initial: Tensor | None  # (s, p)
    extra: Records
    first: int  # index of its first model

    @staticmethod
    def of(initial: Tensor | None, extra: Records, first: int) -> _Chunk:
        """Copies, since a slice would take the whole tensor along to another machine."""
        own = Records(extra.inputs.clone(), extra.labels.clone(), extra.classes)
        return _Chunk(None if initial is None else initial.clone(), own, first)


def _fit(shared: _Shared, chunk: _Chunk) -> Tensor:
    initial = shared.initial if chunk.initial is None else chunk.initial
    assert initial is not None  # one of the two is set
    return shared.recipe.fit(initial, shared.fixed, chunk.extra, shared.key, chunk.first)
