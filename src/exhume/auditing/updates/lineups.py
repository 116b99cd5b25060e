"""The line-up of what came back from updates: each client's records among those that no client had.

What is nearer to a mean of the batch than to any of its records is an average, and answers nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from exhume.auditing.updates.attacks import Answer, UpdateAttack
from exhume.auditing.updates.found_texts import is_of_texts, pooled_texts, text_measure
from exhume.core.contract import Key, Reconstruction, Records
from exhume.core.evidence import LineupRow
from exhume.score.batches import averages_among
from exhume.score.placebo import DIFFERENT, placebo
from exhume.score.places import Places, line_up, places_for

__all__ = ["Lined", "Truth", "lined_up", "pooled"]

_LEVEL = 0.01  # of the placebo


@dataclass(frozen=True, eq=False)
class Truth:
    """The private records, where the owner has given them to score with."""

    private: dict[str, Records]  # by client
    others: Records
    chosen: bool = False  # by the user, not at random
    doubt: str = ""  # why silence of any attack would say nothing
    wrong: str = ""  # that these records do not give the update: silence is not about them
    strange: frozenset[str] = frozenset()  # clients whose records do not give their update
    places: dict[str, Places] = field(default_factory=dict, repr=False)  # once for all attacks


@dataclass(frozen=True, eq=False)
class Lined:
    row: LineupRow
    ranks: Tensor  # (t,) of all private records, client by client
    averages: int  # candidates that are averages of their batch
    doubt: str = ""  # why a line-up of these records says nothing

    @property
    def sentence(self) -> str:
        if not self.averages:
            return ""
        some = "1 candidate is" if self.averages == 1 else f"{self.averages} candidates are"
        return f"{some} nearer to a mean of the batch than to any record: an average, which counts for none."


def lined_up(
    attack: UpdateAttack, ran: Sequence[Answer], truth: Truth, key: Key, tests: int
) -> Lined:
    """Every record of a client against everything found in its updates. tests: of the audit."""
    padding, alike = text_measure(attack, ran) if is_of_texts(ran) else (None, None)
    places = _places(truth, key.fold("places"), padding)
    answers, averages = [], 0
    for client, records in truth.private.items():
        if is_of_texts(ran):
            shape = records.shape if attack.whole else (1,)
            answers.append(pooled_texts(ran, client, shape).found())
            continue
        found = pooled(ran, client, records.shape).found()
        mean = averages_among(found, records)
        averages += int(mean.sum())
        answers.append(found[~mean])
    row, ranks = line_up(places, answers, key.fold("line-up"), tests=tests, alike=alike)
    if truth.wrong:
        return Lined(row, ranks, averages, truth.wrong)
    if not truth.chosen or not row.targets:
        return Lined(row, ranks, averages)
    by_itself = placebo(places, key.fold("placebo"), alike if attack.whole else None)
    if by_itself > _LEVEL:
        return Lined(row, ranks, averages)
    return Lined(replace(row, p=1.0), ranks, averages, DIFFERENT.format(by_itself))


def _places(truth: Truth, key: Key, padding: int | None) -> Places:
    private = list(truth.private.values())
    if key.digest not in truth.places:
        own = Records(
            torch.cat([records.inputs for records in private]),
            torch.cat([records.labels for records in private]),
            private[0].classes,
            private[0].vocabulary,
        )
        release = torch.cat([torch.full((len(r),), place) for place, r in enumerate(private)])
        truth.places[key.digest] = places_for(own, release, truth.others, key, padding=padding)
    return truth.places[key.digest]


def pooled(ran: Sequence[Answer], client: str, shape: tuple[int, ...]) -> Reconstruction:
    """Everything found in any of a client's updates, as candidates for its records."""
    own = [answer.found for answer in ran if answer.case.client == client]
    real = [found.real[0] for found in own]
    candidates = [found.candidates[0][keep].double() for found, keep in zip(own, real, strict=True)]
    labels = [
        torch.full((int(keep.sum()),), -1) if found.labels is None else found.labels[0][keep]
        for found, keep in zip(own, real, strict=True)
    ]
    if not own:
        candidates, labels = [torch.zeros(0, *shape).double()], [torch.zeros(0, dtype=torch.int64)]
    whole = torch.cat(candidates)[None]
    return Reconstruction(
        whole,
        torch.zeros(whole.shape[:2]),
        ran[0].found.status,
        labels=torch.cat(labels)[None],
    )
