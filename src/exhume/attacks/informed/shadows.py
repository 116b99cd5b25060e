"""Shadow models: what an informed adversary trains before it sees any release (Balle22).

Shadow i is trained exactly as the victim was, on the fixed records and the adversary's own record i;
the base on the fixed records alone. Where training adds noise of its own (differential privacy), one
model trained without an unknown record is one draw of that noise, which would be written into every
difference from it; there the base is the shadows' mean, in which the noise averages out.

Every attack that asks with the same key, chunk and store gets the same shards, so the models are trained
once.

Memory: what `memory.LIMITS.models` says; more models than that are kept in a file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from exhume.attacks.informed.memory import room_for
from exhume.core.contract import (
    Key,
    Knowledge,
    Layout,
    NotApplicable,
    Progress,
    Records,
    Store,
    silent,
)
from exhume.train.fleet import train_fleet
from exhume.train.recipe import FullBatch

__all__ = ["Shadows", "train_shadows"]


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
    knowledge.require(who, "recipe", "initial", "fixed", "shadow")
    recipe, initial = knowledge.recipe, knowledge.initial
    fixed, shadow = knowledge.fixed, knowledge.shadow
    assert recipe is not None  # `require` has seen to these four
    assert initial is not None
    assert fixed is not None
    assert shadow is not None
    if len(shadow) < fewest:
        raise NotApplicable(
            f"shadow: {len(shadow)} records given, at least {fewest} needed", ever=True
        )
    started = time.perf_counter()
    fleet = train_fleet(
        recipe,
        initial,
        fixed,
        shadow.one_each(),
        key=key.fold("shadow"),
        store=store,
        chunk=chunk,
        stage="training shadow models",
        progress=progress,
    )
    parameters = _gathered(fleet, len(shadow), initial)
    if isinstance(recipe, FullBatch) and recipe.privacy.random:
        base = parameters.mean(0)
    else:
        base = recipe.fit(initial, fixed, fixed.none_for(1), key.fold("base"))[0]
    layout = recipe.architecture.layout
    return Shadows(parameters, base, shadow, layout, time.perf_counter() - started)


def _gathered(fleet: Iterator[Tensor], models: int, initial: Tensor) -> Tensor:
    """(s, p) of chunks that come one by one."""
    found, done = room_for(models, initial.shape[-1], initial), 0
    for chunk in fleet:
        found[done : done + len(chunk)] = chunk
        done += len(chunk)
    return found
