"""Easier checkpoints: the same network, trained here on fewer records in the way that the attack can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from exhume.auditing.controls import Ladder, Rung
from exhume.auditing.estimate import forward_operations, seconds_of
from exhume.contract import Key, Progress, Records, Store
from exhume.evidence import LineupRow
from exhume.models.heads import Head
from exhume.models.homogeneous import HomogeneousMLP
from exhume.report.folder import RunFolder
from exhume.train.margin import MarginDescent
from exhume.victims.margin import MarginVictim, release_margin

__all__ = ["checkpoint_ladder", "recipe_like"]

_COUNTS = (16, 64, 256)
_EPOCHS = 20_000
_DECAY = 2e-3
Attack = Callable[[MarginVictim, Records, Records, Store, Progress], LineupRow]


def checkpoint_ladder(
    recipe: MarginDescent, others: Records, own: int, key: Key, attack: Attack
) -> Ladder:
    """others: records that were not trained on; own: how many were. attack: on what is trained here."""
    recipe = replace(recipe, epochs=_EPOCHS)
    rungs = [
        _rung(recipe, others, count, key.fold(count), attack)
        for count in _COUNTS
        if count < own and 4 * count <= len(others)
    ]
    respect = f"training records, {_how(recipe)}"
    return Ladder(respect, f"{own:,}, as it is", "in the checkpoint as it is", tuple(rungs))


def recipe_like(network: HomogeneousMLP, head: Head, *, spans: bool) -> MarginDescent:
    """A training that ends where the attack can read it. spans: by weight decay; else by a small start."""
    if spans:
        return MarginDescent(network, head, weight_decay=_DECAY, stop_loss=0.0)
    return MarginDescent(replace(network, first_scale=1e-4), head, growing_steps=0.003)


def _how(recipe: MarginDescent) -> str:
    return "with weight decay" if recipe.weight_decay else "from a small start"


def _rung(recipe: MarginDescent, others: Records, count: int, key: Key, attack: Attack) -> Rung:

    def run(
        attacks: Sequence[str], folder: RunFolder, progress: Progress
    ) -> Mapping[str, LineupRow]:
        order = torch.randperm(len(others), generator=key.generator())
        chosen, rest = others[order[:count]], others[order[count:]]
        store = folder.store()
        victim = release_margin(recipe, chosen, key=key, store=store, progress=progress)
        row = attack(victim, chosen, rest, store, progress)
        return dict.fromkeys(attacks, row)

    seconds = seconds_of(3 * _EPOCHS * count * forward_operations(recipe.architecture))
    words = f"trained here on {count} of the decoys {_how(recipe)}"
    return Rung(str(count), words, seconds, run)
