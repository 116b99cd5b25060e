"""Easier checkpoints: the same network, trained here on fewer records in the way that the attack can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from exhume.auditing.checkpoint.preprocessing import Preprocessing
from exhume.auditing.checkpoint.running import Attack, Control
from exhume.auditing.checkpoint.scoring_records import ScoringRecords
from exhume.auditing.controls import Ladder, Rung
from exhume.auditing.estimate import stacked_seconds
from exhume.core.contract import Key, Progress, Records, Store, Weights
from exhume.core.evidence import LineupRow
from exhume.report.folder import RunFolder
from exhume.train.margin import MarginDescent
from exhume.train.recipe import FullBatch
from exhume.victims.margin import release_margin, trained_in_full

__all__ = ["checkpoint_ladder"]

_COUNTS = (16, 64, 256)


def checkpoint_ladder(
    recipe: MarginDescent | FullBatch,
    given: ScoringRecords,
    preprocessing: Preprocessing,
    key: Key,
    attack: Attack,
) -> Ladder:
    """given: what was trained on, whose classes are mixed alike, and others, which are trained on here.

    attack: on what is trained here.
    """
    own = len(given.trained)
    rungs = [
        _rung(recipe, given, preprocessing.for_control(), count, key=key.fold(count), attack=attack)
        for count in _COUNTS
        if count < own and 4 * count <= len(given.strangers)
    ]
    respect = f"training records, {_how(recipe)}"
    return Ladder(respect, f"{own:,}, as it is", "in the checkpoint as it is", tuple(rungs))


def _how(recipe: MarginDescent | FullBatch) -> str:
    small = isinstance(recipe, MarginDescent) and not recipe.weight_decay
    return "from a small start" if small else "with weight decay"


def _rung(
    recipe: MarginDescent | FullBatch,
    given: ScoringRecords,
    preprocessing: Preprocessing,
    count: int,
    *,
    key: Key,
    attack: Attack,
) -> Rung:

    def run(
        attacks: Sequence[str], folder: RunFolder, progress: Progress
    ) -> Mapping[str, LineupRow]:
        chosen = _mixed_alike(given.trained, given.strangers, count, key)
        rest = torch.ones(len(given.strangers), dtype=torch.bool)
        rest[chosen] = False
        trained, others = given.strangers[chosen], given.strangers[rest]
        entering = Records(preprocessing.entering(trained.inputs), trained.labels, trained.classes)
        store = folder.store()
        release, centre = _released(recipe, entering, key=key, store=store, progress=progress)
        row = attack(Control(release, centre, trained, others, preprocessing), store, progress)
        return dict.fromkeys(attacks, row)

    epochs = recipe.epochs if isinstance(recipe, MarginDescent) else recipe.descent.steps
    seconds = stacked_seconds(recipe.architecture, epochs * count)
    words = f"trained here on {count} of the decoys {_how(recipe)}"
    return Rung(str(count), words, seconds, run)


def _released(
    recipe: MarginDescent | FullBatch,
    records: Records,
    *,
    key: Key,
    store: Store,
    progress: Progress,
) -> tuple[Weights, Tensor]:
    """The weights, and what the records lost before they entered."""
    if isinstance(recipe, MarginDescent):
        victim = release_margin(recipe, records, key=key, store=store, progress=progress)
        return victim.release, victim.centre
    centre = records.inputs.mean(0)
    centred = Records(records.inputs - centre, records.labels, records.classes)
    return trained_in_full(recipe, centred, key=key, store=store, progress=progress), centre


def _mixed_alike(own: Records, others: Records, count: int, key: Key) -> Tensor:
    """Rows of so many others, with the classes in the shares that one's own have, as far as they go."""
    generator = key.generator()
    drawn = own.labels[torch.randperm(len(own), generator=generator)[:count]]
    wanted = Counter(own.classes[label] for label in drawn.tolist())
    order = torch.randperm(len(others), generator=generator).tolist()
    chosen = list[int]()
    for row in order:
        name = others.classes[int(others.labels[row])]
        if wanted[name] > 0:
            wanted[name] -= 1
            chosen.append(row)
    taken = set(chosen)
    spare = [row for row in order if row not in taken]
    return torch.tensor((chosen + spare)[:count])
