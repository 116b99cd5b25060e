"""Which privacy a way of training states, so that what attacks reach can be put beside what it allows."""

from __future__ import annotations

from torch import Tensor

from exhume.core.contract import ExhumeError, Key, NotApplicable, Recipe, Records, Shard, Store
from exhume.settings import VictimSettings
from exhume.store.shards import address, digest
from exhume.train.dp import ClaimedPrivacy, Privacy, read_from_opacus
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
) -> ClaimedPrivacy | NotApplicable | None:
    """None: training is not private, or nobody says so. A reason: it is, but there is no certificate."""
    if isinstance(recipe, FullBatch):
        return (
            ClaimedPrivacy(recipe.privacy, recipe.descent.steps) if recipe.privacy.noise else None
        )
    if not isinstance(recipe, OwnTraining):
        return None
    said = None
    if victim.dp_noise:
        said = ClaimedPrivacy(
            Privacy(victim.dp_clip, victim.dp_noise, victim.dp_sampling), victim.dp_steps
        )
    read = _read(recipe, fixed, initial, key, store)
    if said is not None and isinstance(read, ClaimedPrivacy):
        _check_same(said, read)
    return read or said


def _read(
    recipe: OwnTraining, fixed: Records, initial: Tensor, key: Key, store: Store
) -> ClaimedPrivacy | NotApplicable | None:
    """By training once on as many records as a released model has; kept in the store."""
    place = address("stated privacy 1", recipe, (digest(fixed), digest(initial)), key, 0)
    held = store.load(place)
    if held is None or not held.notes:
        held = _held(recipe, fixed, initial, key)
        store.save(place, held)
    if _REASON in held.notes:
        return NotApplicable(held.notes[_REASON], ever=True)
    if not held.notes["privacy"]:
        return None
    clip, noise, sampling, steps = held.notes["privacy"]
    return ClaimedPrivacy(Privacy(clip, noise, sampling), steps, "Opacus")


def _held(recipe: OwnTraining, fixed: Records, initial: Tensor, key: Key) -> Shard:
    one_more = Records(fixed.inputs[None, :1], fixed.labels[None, :1], fixed.classes)
    try:
        read = read_from_opacus(lambda: recipe.fit(initial, fixed, one_more, key))
    except NotApplicable as why:
        return Shard({}, {_REASON: why.why})
    if read is None:
        return Shard({}, {"privacy": []})
    one = read.privacy
    return Shard({}, {"privacy": [one.clip, one.noise, one.sampling, read.steps]})


def _check_same(said: ClaimedPrivacy, read: ClaimedPrivacy) -> None:
    pairs = {
        "dp_clip": (said.privacy.clip, read.privacy.clip),
        "dp_noise": (said.privacy.noise, read.privacy.noise),
        "dp_sampling": (said.privacy.sampling, read.privacy.sampling),
        "dp_steps": (float(said.steps), float(read.steps)),
    }
    for name, (mine, theirs) in pairs.items():
        if abs(mine - theirs) > 1e-6 * abs(theirs):
            raise ExhumeError(f"victim.{name}: {mine:g} given, but Opacus trained with {theirs:g}")
