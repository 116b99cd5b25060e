"""The line-ups of one row: of all targets, of the tenth that the attacker is surest of, and what they show.

Every line-up that is significant by itself is drawn a second time with new strangers. Beside the deciding
one, the same test is made on people and not on averages: where each target has a release of its own, on the
tenth of the releases whose answers the attacker is surest of; otherwise with the surest tenth of all answers.
The choice sees confidences only and stays with the release when records are moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from exhume.auditing.case import Seats
from exhume.core.evidence import Epsilon, GroupRow, LineupRow
from exhume.score.epsilon import epsilon_shown
from exhume.score.groups import groups_of, sentence_on_groups
from exhume.score.lineup import LEVEL, USUAL, Lineup
from exhume.score.placebo import DIFFERENT, marked, placebo
from exhume.score.places import (
    Places,
    batch_answers,
    line_up_twice,
    lineup_of,
    nearer_than_others,
    ranks_of,
)

_SUREST = 0.1


@dataclass(frozen=True, eq=False)
class Lined:
    """A line-up, and why it says nothing."""

    row: LineupRow | None = None
    ranks: Tensor | None = None  # (t,)
    averages: int | None = None  # candidates that are averages of their batch
    doubt: str = ""
    wrong: bool = False  # it is of other records
    surest: LineupRow | None = None
    nearer: bool = False  # what came back is nearer to its record than other records are
    epsilon: Epsilon | None = None
    groups: tuple[GroupRow, ...] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        notes = (sentence_on_groups(self.groups),) if self.groups else ()
        if not self.averages:
            return notes
        some = "1 candidate is" if self.averages == 1 else f"{self.averages} candidates are"
        return (
            f"{some} nearer to a mean of the batch than to any record: an average, which counts for none.",
            *notes,
        )


def line_up_row(
    seats: Seats | None, tests: int, *, decides: bool = False, whole: bool = False
) -> Lined:
    """Every record against everything that answers its release.

    What is nearer to a mean of a batch than to any of its records is an average, and answers nobody. Where
    the user chose the records, answers that know nothing of the release come first. decides: the verdict may
    rest on it. whole: answers are records, and not parts of them.
    """
    if seats is None:
        return Lined()
    places, key = seats.places, seats.key
    lineup, averages = _lineup(seats, seats.candidates)
    row, score = line_up_twice(places, lineup, key, tests=tests)
    lined = Lined(row, ranks_of(places, score), averages)
    if seats.wrong:
        return replace(lined, doubt=seats.wrong, wrong=True)
    if seats.placebo is not None and row.targets:
        chosen, stream, _ = seats.placebo
        by_itself = min(placebo(*seats.placebo), marked(chosen, stream))
        if by_itself <= LEVEL:
            return replace(lined, row=replace(row, p=1.0), doubt=DIFFERENT.format(by_itself))
    if not decides or not row.targets:
        return lined
    return replace(
        lined,
        surest=surest_row(seats, lineup, tests),
        nearer=whole and row.p <= LEVEL and nearer_than_others(places, lineup, seats.alike),
        epsilon=_epsilon(seats, lineup, row, tests),
        groups=groups_of(lined.ranks, seats.groups) if lined.ranks is not None else None,
    )


def _lineup(seats: Seats, candidates: Sequence[Tensor]) -> tuple[Lineup, int | None]:
    """With the number of averages among the candidates; None: there are no batches."""
    places, alike = seats.places, seats.alike
    if not seats.batches:
        return lineup_of(places, candidates, alike), None
    batches = batch_answers(places, candidates, seats.batches, alike)
    return lineup_of(places, candidates, alike, batches), batches.dropped


def surest_row(seats: Seats, lineup: Lineup, tests: int) -> LineupRow | None:
    """None: the attack gives no confidences, or there is no answer."""
    places, key = seats.places, seats.key.fold("surest")
    if not any(len(sure) for sure in seats.confidence):
        return None
    if _one_each(places):
        releases = places.release[places.release >= 0]
        sure = torch.tensor([_most(seats.confidence[release]) for release in releases.tolist()])
        first = sure.argsort(descending=True, stable=True)[: ceil(_SUREST * len(releases))]
        row, _ = line_up_twice(places, lineup, key, tests=tests, only=releases[first])
        return replace(row, surest="releases")
    every = torch.cat([sure.double().cpu() for sure in seats.confidence])
    chosen = torch.zeros(len(every), dtype=torch.bool)
    chosen[every.argsort(descending=True, stable=True)[: ceil(_SUREST * len(every))]] = True
    parts = torch.split(chosen, [len(sure) for sure in seats.confidence])
    some = [
        found[part.to(found.device)] for found, part in zip(seats.candidates, parts, strict=True)
    ]
    row, _ = line_up_twice(places, _lineup(seats, some)[0], key, tests=tests)
    return replace(row, surest="answers")


def _one_each(places: Places) -> bool:
    """Every target has a release of its own."""
    releases = places.release[places.release >= 0]
    return len(releases) > 1 and len(torch.unique(releases)) == len(releases)


def _most(sure: Tensor) -> float:
    return float(sure.max()) if len(sure) else -torch.inf


def _epsilon(seats: Seats, lineup: Lineup, row: LineupRow, tests: int) -> Epsilon | None:
    """Of strangers that no two targets share where they suffice; else of the line-up, as an estimate."""
    if not seats.game:
        return None
    measures = len(lineup.similarity)
    dealt = lineup.dealt(USUAL, seats.key.fold("epsilon"))
    if dealt is not None and seats.game == "independent":
        identified, targets, strangers = dealt
        return epsilon_shown(identified, targets, measures / (strangers + 1), rows=tests)
    chance = measures / (row.strangers + 1)
    return epsilon_shown(row.identified, row.targets, chance, rows=tests, estimate=True)
