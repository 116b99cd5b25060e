"""Training many models, a chunk at a time: bounded memory, every finished chunk kept, nothing redone.

Each chunk is one piece of work with a content address, so a killed job that is started again loads
what it had finished and ends with the same bits. The chunk size is part of what decides the bits:
choose it once (`chunk_for`), write it down, reuse it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from exhume.contract import Key, Progress, Recipe, Records, Store, silent
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

    initial: (p,) or one row per model; extra: (s, e, *shape). Holds one chunk at a time.
    """
    total = len(extra)
    known = (digest(initial) if initial.ndim == 1 else "", digest(fixed))
    progress(stage, 0, total)
    for start in range(0, total, chunk):
        part = extra[start : start + chunk]
        begin = initial if initial.ndim == 1 else initial[start : start + chunk]
        inputs = (*known, digest(part), "" if initial.ndim == 1 else digest(begin))
        name = address("train_fleet", recipe, inputs, key, start)
        saved = store.load(name)
        if saved is None:
            trained = recipe.fit(begin, fixed, part, key, start)
            store.save(name, {"parameters": trained})
        else:
            trained = saved["parameters"].to(fixed.inputs.device)
        yield trained
        progress(stage, min(start + chunk, total), total)
