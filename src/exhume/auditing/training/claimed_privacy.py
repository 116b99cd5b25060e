"""Which privacy a way of training states, so that what attacks reach can be put beside what it allows."""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.contract import ExhumeError, Key, NotApplicable, Recipe, Records, Store
from exhume.settings import VictimSettings
from exhume.store import address, digest
from exhume.train.claimed_privacy import Stated, read_from_opacus
from exhume.train.dp import Privacy
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch

__all__ = ["stated_by"]

_REASON = "why"


def stated_by(
    victim: VictimSettings,
    recipe: Recipe,
    fixed: Records,
    initial: Tensor,
    *,
    key: Key,
    store: Store,
) -> Stated | NotApplicable | None:
    """None: training is not private, or nobody says so. A reason: it is, but there is no certificate."""
    if isinstance(recipe, FullBatch):
        return Stated(recipe.privacy, recipe.descent.steps) if recipe.privacy.noise else None
    if not isinstance(recipe, OwnTraining):
        return None
    said = None
    if victim.dp_noise:
        said = Stated(Privacy(victim.dp_clip, victim.dp_noise, victim.dp_sampling), victim.dp_steps)
    read = _read(recipe, fixed, initial, key, store)
    if said is not None and isinstance(read, Stated):
        _check_same(said, read)
    return read or said


def _read(
    recipe: OwnTraining, fixed: Records, initial: Tensor, key: Key, store: Store
) -> Stated | NotApplicable | None:
    """By training once on as many records as a released model has; kept in the store."""
    place = address("stated privacy 1", recipe, (digest(fixed), digest(initial)), key, 0)
    held = store.load(place)
    if held is None:
        held = _held(recipe, fixed, initial, key)
        store.save(place, held)
    if _REASON in held:
        return NotApplicable(bytes(held[_REASON].tolist()).decode(), ever=True)
    if not len(held["numbers"]):
        return None
    clip, noise, sampling, steps = held["numbers"].tolist()
    return Stated(Privacy(clip, noise, sampling), int(steps), "Opacus")


def _held(recipe: OwnTraining, fixed: Records, initial: Tensor, key: Key) -> dict[str, Tensor]:
    one_more = Records(fixed.inputs[None, :1], fixed.labels[None, :1], fixed.classes)
    try:
        read = read_from_opacus(lambda: recipe.fit(initial, fixed, one_more, key))
    except NotApplicable as why:
        return {_REASON: torch.tensor(list(why.why.encode()), dtype=torch.uint8)}
    numbers: list[float] = []
    if read is not None:
        numbers = [read.privacy.clip, read.privacy.noise, read.privacy.sampling, read.steps]
    return {"numbers": torch.tensor(numbers, dtype=torch.float64)}


def _check_same(said: Stated, read: Stated) -> None:
    pairs = {
        "dp_clip": (said.privacy.clip, read.privacy.clip),
        "dp_noise": (said.privacy.noise, read.privacy.noise),
        "dp_sampling": (said.privacy.sampling, read.privacy.sampling),
        "dp_steps": (float(said.steps), float(read.steps)),
    }
    for name, (mine, theirs) in pairs.items():
        if abs(mine - theirs) > 1e-6 * abs(theirs):
            raise ExhumeError(f"victim.{name}: {mine:g} given, but Opacus trained with {theirs:g}")
