"""Shadow models: what an informed adversary trains before it sees any release (Balle22).

Shadow i is trained exactly as the victim was, on the fixed records and the adversary's own record i;
the base on the fixed records alone. Where training adds noise of its own (differential privacy), one
model trained without an unknown record is one draw of that noise, which would be written into every
difference from it; there the base is the shadows' mean, in which the noise averages out.

Every attack that asks with the same key, chunk and store gets the same shards, so the models are trained
once.

Memory: all shadow models together are s·p numbers: 12 GB at Balle22's CIFAR-10 size, several times that in
fp64. What fits `LIMITS` is held whole; anything larger is kept in a file and gone through in blocks.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from exhume.core.contract import (
    Architecture,
    Key,
    Knowledge,
    Layout,
    NotApplicable,
    Progress,
    Recipe,
    Records,
    Store,
    silent,
)
from exhume.models.hidden_units import HiddenUnits
from exhume.models.own import fully_connected
from exhume.train.fleet import train_fleet
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch, MiniBatch

_COMPARED = 50  # shadows by which it is decided whether units are aligned
_SAYS_NOTHING = 0.5  # of the shadows' differences: units are aligned where less than that is left


@dataclass(frozen=True, eq=False)
class Shadows:
    parameters: Tensor  # (s, p)
    base: Tensor  # (p,) a model trained without an unknown record; under noise, the shadows' mean
    records: Records  # (s, *shape): record i is the unknown one of model i
    layout: Layout
    seconds: float


def train_shadows(
    knowledge: Knowledge,
    who: str,
    *,
    fewest: int,
    chunk: int,
    key: Key,
    store: Store,
    progress: Progress = silent,
) -> Shadows:
    """All shadow models of this knowledge; `who` asks is named where the knowledge does not suffice."""
    recipe, initial, fixed, shadow = knowledge.require(who, "recipe", "initial", "fixed", "shadow")
    if len(shadow) < fewest:
        raise NotApplicable(
            f"shadow: {len(shadow)} records given, at least {fewest} needed", ever=True
        )
    started = time.perf_counter()
    fleet = train_fleet(
        recipe,
        initial,
        fixed,
        shadow.one_each(knowledge.copies or 1),
        key=key.fold("shadow"),
        store=store,
        chunk=chunk,
        stage="training shadow models",
        progress=progress,
    )
    parameters, done = room_for(len(shadow), initial.shape[-1], initial), 0
    for trained in fleet:
        parameters[done : done + len(trained)] = trained
        done += len(trained)
    base = _base(recipe, initial, fixed, parameters, key)
    layout = recipe.architecture.layout
    return Shadows(parameters, base, shadow, layout, time.perf_counter() - started)


def _base(recipe: Recipe, initial: Tensor, fixed: Records, parameters: Tensor, key: Key) -> Tensor:
    """(p,) that the change of the weights counts from; somebody's own training is asked how random it is."""
    if isinstance(recipe, FullBatch | MiniBatch) and recipe.random:
        return parameters.mean(0)
    alone = recipe.fit(initial, fixed, fixed.none_for(1), key.fold("base"))[0]
    if not isinstance(recipe, OwnTraining):
        return alone
    again = recipe.fit(initial, fixed, fixed.none_for(1), key.fold("base again"))[0]
    mean = parameters.mean(0)
    spread = float((parameters[:_COMPARED] - mean).square().sum(1).mean())
    return mean if float((alone - again).square().sum()) > spread else alone


def align_shadows(trained: Shadows, architecture: Architecture) -> HiddenUnits | None:
    """How to read releases unit by unit like the base, where training leaves units in any order or scale.

    The shadows decide, and are then aligned in place. Where most of what differs between shadows and their
    base is the order and the scale of hidden units, which say nothing, it hides what the record does. Usual
    training moves no unit's scale by itself; None: the shadows stay as they are.
    """
    mlp = fully_connected(architecture)
    if mlp is None or not mlp.hidden:
        return None
    units = HiddenUnits(mlp, trained.base)
    some = trained.parameters[:_COMPARED]
    before = float((some - trained.base).double().square().sum())
    after = float((units.aligned(some) - trained.base).double().square().sum())
    if not after < _SAYS_NOTHING * before:
        return None
    for rows in row_blocks(*trained.parameters.shape, element=trained.parameters.element_size()):
        trained.parameters[rows] = units.aligned(trained.parameters[rows])
    return units


@dataclass
class MemoryLimits:
    """Bytes. One value for the process; tests lower it."""

    models: int = 2 << 30  # of all shadow models that are held in memory
    whole: int = 1 << 30  # of what is read off all of them, held between two uses
    block: int = 1 << 27  # of what is read off some of them, otherwise
    span: int = 4096  # training shadows whose span a network may read instead of all parameters


LIMITS = MemoryLimits()


def room_for(rows: int, columns: int, like: Tensor) -> Tensor:
    """(rows, columns) to be filled: in memory, or in a file of the folder for temporary ones (TMPDIR)."""
    size = rows * columns
    if like.device.type != "cpu" or size * like.element_size() <= LIMITS.models:
        return like.new_empty(rows, columns)
    with tempfile.NamedTemporaryFile(prefix="exhume-", delete=False) as file:
        name = file.name
    room = torch.from_file(name, shared=True, size=size, dtype=like.dtype).view(rows, columns)
    with contextlib.suppress(OSError):  # the map keeps it; where a system does not let go, it stays
        Path(name).unlink()
    return room


def row_blocks(rows: int, columns: int, *, element: int = 8) -> Iterator[slice]:
    """Slices of at most `LIMITS.block` bytes, a row at least."""
    step = max(1, LIMITS.block // (element * columns))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))
