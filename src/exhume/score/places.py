"""Who stands in a line-up: private records and strangers, in strata, each record once.

A stratum is a class; of texts also a range of lengths, of records without labels everything. Near-duplicates
and what the adversary practically holds leave the pool by rules that do not look at who is a target, so that
within a stratum targets and strangers stay exchangeable. Where a class is a person of whom the adversary
holds nothing, one record of each class stands among other people's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records
from exhume.core.evidence import LineupRow
from exhume.score.averages import Batches, batches_of
from exhume.score.copies import sameness
from exhume.score.intervals import clopper_pearson
from exhume.score.lineup import (
    FEWEST,
    LEVEL,
    Alike,
    Lineup,
    LineupScore,
    Redealt,
    answering,
    likeness,
    likeness_anew,
    measures_of,
    strangers_for,
)

PEOPLE = "other people: the person is identified, not the photograph"
_LENGTHS = 3  # ranges of lengths of texts
_SPARE, _TESTS = (
    400,
    10,
)  # strangers of a class, at least; tests of an audit, for how many are enough


@dataclass(frozen=True, eq=False)
class Places:
    """Records at their places. A target's place belongs to the release that its record was in."""

    inputs: Tensor  # (n, *shape)
    release: Tensor  # (n,) -1: a stranger's place
    stratum: Tensor  # (n,)
    target: Tensor  # (n,) which target sits there; -1: a stranger
    left_out: int = 0  # targets
    copies: int = 0  # of these: near-duplicates of other records
    held: int = 0  # of these: what the adversary practically holds
    among: str = "strangers of the same class"

    @property
    def targets(self) -> int:
        return int((self.target >= 0).sum())


def places_for(
    targets: Records,
    release: Tensor,
    strangers: Records,
    key: Key,
    *,
    held: Records | None = None,
    padding: int | None = None,
) -> Places:
    """targets: (t, …) and the release (t,) that each was in; strangers: in nothing that is released or held.

    held: what the adversary has. padding: of texts.
    """
    if len(strangers) and strangers.shape != targets.shape:
        raise ExhumeError(f"line-up: targets of shape {targets.shape}, strangers {strangers.shape}")
    strangers = strangers[_enough(targets, strangers, key.fold("enough"))]
    labels = torch.cat([targets.labels.cpu(), _labels_as(strangers, targets)])
    inputs = torch.cat([targets.inputs, strangers.inputs.to(targets.inputs)])
    known = _held_already(inputs, held)
    copies = sameness(inputs).later(inputs, key.fold("copies")) & ~known
    alone = ~(known | copies)
    release = torch.cat([release.cpu(), torch.full((len(strangers),), -1)])
    number = torch.cat([torch.arange(len(targets)), torch.full((len(strangers),), -1)])
    targeted = number >= 0
    every = Places(
        inputs,
        release,
        _strata(inputs, labels, padding),
        number,
        copies=int((copies & targeted).sum()),
        held=int((known & targeted).sum()),
    )
    kept = _at(every, alone)
    kept = replace(kept, left_out=len(targets) - kept.targets)
    if _rankable(kept) >= kept.targets / 2 or held is None:
        return kept
    familiar = torch.isin(labels, _labels_as(held, targets))
    people = _people(every, labels, alone & ~familiar, key.fold("people"))
    people = replace(people, left_out=len(targets) - people.targets)
    return people if _rankable(people) > _rankable(kept) else kept


def line_up(
    places: Places,
    candidates: Sequence[Tensor],
    key: Key,
    *,
    tests: int = 1,
    alike: Alike | None = None,
    redealt: Redealt | None = None,
) -> tuple[LineupRow, Tensor]:
    """The test, and the rank of every target (t,) among its strangers; 0: it was left out.

    candidates: (k, *shape) that answer each release. tests: of the audit. alike: (k, *shape) candidates and
    (n, *shape) records to (k, n); None: by what the records are. redealt: the answers that take their place.
    """
    lineup = lineup_of(places, candidates, alike, redealt)
    row, score = line_up_twice(places, lineup, key, tests=tests)
    return row, ranks_of(places, score)


def line_up_twice(
    places: Places, lineup: Lineup, key: Key, *, tests: int, only: Tensor | None = None
) -> tuple[LineupRow, LineupScore]:
    """The test; where it is significant by itself also its p with new strangers, as far as there are any.

    only: (b,) releases whose targets are counted; None: all.
    """
    strangers = _wanted(places, lineup, tests)
    score = lineup.score(key, strangers=strangers, tests=tests, only=only)
    left_out = places.left_out if only is None else 0
    row = score.row(left_out=left_out, among=places.among, tests=tests)
    row = _with_causes(row, places) if only is None else row
    if row.p <= LEVEL:
        again = key.fold("second draw")
        second = lineup.score(again, strangers=strangers, only=only, before=score.strangers)
        row = replace(row, second=second.p)
    return row, score


def _with_causes(row: LineupRow, places: Places) -> LineupRow:
    return replace(row, copies=places.copies, held=places.held)


def lineup_of(
    places: Places,
    candidates: Sequence[Tensor],
    alike: Alike | None = None,
    redealt: Redealt | None = None,
) -> Lineup:
    anew = likeness_anew(redealt) if redealt is not None else None
    similarity = anew or likeness(candidates, places.inputs, alike)
    return Lineup(similarity, places.release, places.stratum, redealt)


def ranks_of(places: Places, score: LineupScore) -> Tensor:
    """(t,) of every target among its strangers; 0: it was left out."""
    ranks = torch.zeros(places.targets + places.left_out, dtype=torch.long)
    ranks[places.target[score.targets]] = score.ranks
    return ranks


def _wanted(places: Places, lineup: Lineup, tests: int) -> int:
    return strangers_for(places.targets, tests, len(lineup.similarity))


def nearer_than_others(places: Places, lineup: Lineup, alike: Alike | None = None) -> bool:
    """Whether what came back is nearer to its record than any other record is, more often than by chance.

    Chance: the same question for strangers, each put to the answers of a release in turn.
    """
    (row, *_), (first, *_) = lineup.similarity, measures_of(places.inputs, alike)
    every = first(places.inputs)  # (n, n)
    every.fill_diagonal_(-torch.inf)
    others = every.amax(0).to(row)
    place = torch.arange(len(others))
    own = places.release >= 0
    answering_release = torch.where(own, places.release, place % len(row))
    nearer = row[answering_release, place] > others
    won, lucky = nearer[own], nearer[~own]
    low = clopper_pearson(int(won.sum()), len(won))[0] if len(won) else 0.0
    high = clopper_pearson(int(lucky.sum()), len(lucky))[1] if len(lucky) else 1.0
    return low > high


def batch_answers(
    places: Places,
    candidates: Sequence[Tensor],
    batches: Sequence[Records],
    alike: Alike | None = None,
) -> Batches:
    """Candidates (k, *shape) of each release beside the batches behind them, of which some are averages."""
    finite = [answering(found) for found in candidates]
    measures = measures_of(places.inputs, alike)
    nothing = torch.zeros(0, len(places.inputs), dtype=torch.float64)
    similarity = [
        tuple(each(found).double() if len(found) else nothing for each in measures)
        for found in finite
    ]
    return batches_of(
        finite,
        similarity,
        batches,
        places.inputs,
        stratum=places.stratum,
        target=places.target,
    )


def _at(places: Places, keep: Tensor) -> Places:
    return replace(
        places,
        inputs=places.inputs[keep.to(places.inputs.device)],
        release=places.release[keep],
        stratum=places.stratum[keep],
        target=places.target[keep],
    )


def _rankable(places: Places) -> int:
    """Targets with enough strangers."""
    count = 0
    for place in (places.target >= 0).nonzero()[:, 0].tolist():
        same = places.stratum == places.stratum[place]
        count += int((same & (places.release != places.release[place])).sum()) >= FEWEST
    return count


def _people(places: Places, labels: Tensor, allowed: Tensor, key: Key) -> Places:
    """One place for each class of which the adversary holds nothing: a target's before a stranger's."""
    order = torch.randperm(len(labels), generator=key.generator())
    first = order[places.target[order].lt(0).long().argsort(stable=True)]  # targets first
    seen: set[int] = set()
    keep = torch.zeros(len(labels), dtype=torch.bool)
    for place in first.tolist():
        label = int(labels[place])
        if bool(allowed[place]) and label not in seen:
            seen.add(label)
            keep[place] = True
    chosen = _at(places, keep)
    return replace(chosen, stratum=torch.zeros_like(chosen.stratum), among=PEOPLE)


def _enough(targets: Records, strangers: Records, key: Key) -> Tensor:
    """Rows of as many strangers of each class, drawn at random, as a line-up can use; of all for texts."""
    labels = _labels_as(strangers, targets)
    if not targets.inputs.is_floating_point():
        return torch.arange(len(labels))
    most = max(_SPARE, strangers_for(len(targets), _TESTS, 2) + 1)
    order = torch.randperm(len(labels), generator=key.generator())
    kept = [order[labels[order] == label][:most] for label in torch.unique(labels)]
    return torch.cat([torch.zeros(0, dtype=torch.long), *kept]).sort().values


def _labels_as(records: Records, other: Records) -> Tensor:
    """(n,) labels by the other's numbers, where classes have names; those it does not know get new ones."""
    if records.classes == other.classes or not records.classes or not other.classes:
        return records.labels.cpu()
    names = list(other.classes)
    names += [name for name in records.classes if name not in names]
    number = torch.tensor([names.index(name) for name in records.classes])
    return number[records.labels.cpu().long()]


def _strata(inputs: Tensor, labels: Tensor, padding: int | None) -> Tensor:
    if inputs.is_floating_point():
        return labels.long()
    lengths = (inputs != (-1 if padding is None else padding)).sum(1).double().cpu()
    cuts = torch.linspace(0, 1, _LENGTHS + 1, dtype=torch.float64)[1:-1]
    longer = torch.bucketize(lengths, torch.quantile(lengths, cuts))
    return labels.long() * _LENGTHS + longer


def _held_already(inputs: Tensor, held: Records | None) -> Tensor:
    """(n,) bool: what the adversary practically holds."""
    if held is None or not len(held) or not len(inputs):
        return torch.zeros(len(inputs), dtype=torch.bool)
    return sameness(inputs).near(inputs, held.inputs)
