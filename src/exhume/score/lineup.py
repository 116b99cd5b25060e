"""The line-up: is a private record more like what came back than strangers of its class are?

A place is where a record sits: a target's place belongs to the release that its record was in, a stranger's
to none. M[a, r] is the similarity of record r to what answers release a.

    T(pi) = number of targets i with M[a(i), pi(i)] > M[a(i), pi(j)] for every stranger's place j in S(i)
    p     = (1 + number of permutations with T(pi) >= T(identity)) / (1 + number of permutations)

pi moves records among the places of a stratum (the class). If within a stratum what came back does not
depend on which record sat where, all pi are alike, and the test is exact: whether strangers are shared, a
release has many targets, or an answer has many candidates. The observed count is T(identity), by the same
code. Images have two measures, and first by either counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key
from exhume.core.evidence import LineupRow
from exhume.score.intervals import rate_reaching
from exhume.score.measures import directions

LEVEL = 0.01  # of an audit
USUAL, FEWEST, MOST = 99, 9, 1999  # strangers of a target
_DRAWS, _ANEW = 9999, 1999  # permutations; where each has all answers worked out anew
_AT_ONCE = 1000


@dataclass(frozen=True, eq=False)
class LineupScore:
    """One attack's line-up."""

    targets: Tensor  # (t,) places of the targets that have enough strangers
    ranks: Tensor  # (t,) by the better measure; 1: identified
    chance: float  # share of targets identified by chance, on average
    tail: Tensor  # (t + 2,) p of every possible count
    left_out: int  # targets with too few strangers
    fewest: int  # strangers of any target
    strangers: Mapping[int, Tensor]  # places, by the target's

    @property
    def identified(self) -> Tensor:
        """(t,) bool: strictly first among its strangers."""
        return self.ranks == 1

    @property
    def count(self) -> int:
        return int(self.identified.sum())

    @property
    def p(self) -> float:
        return float(self.tail[self.count]) if len(self.targets) else 1.0

    def row(self, *, left_out: int = 0, among: str, tests: int = 1) -> LineupRow:
        """For the result. left_out: targets that were taken out before. tests: of the audit."""
        falling = self.tail[: len(self.targets) + 1].tolist()
        last = falling.index(falling[-1])  # from here on p is the smallest
        row = LineupRow(
            self.count,
            len(self.targets),
            self.fewest,
            self.chance,
            self.p,
            needed=len(self.targets) + 1,
            detectable=1.0,
            left_out=self.left_out + left_out,
            among=among,
            tail=tuple(falling[: last + 1]),
        )
        return among_tests(row, tests)


@runtime_checkable
class Redealt(Protocol):
    """Answers that depend on who sits where: a permutation makes them anew."""

    @property
    def records(self) -> int:
        """At places, and besides."""
        ...

    @property
    def depends(self) -> bool:
        """They do depend on it; else what was found once holds for every permutation."""
        ...

    @property
    def entered(self) -> bool:
        """Targets enter each other's answers, so that none of them is another's stranger."""
        ...

    def each(self, seated: Tensor) -> Iterator[tuple[int, Tensor, tuple[Tensor, ...]]]:
        """For every release its number, the rows (s,) of `seated` in which something answers it, and (s, n).

        seated: (d, records) the record at every place. (s, n): similarity of every record, by measure.
        """
        ...


@dataclass(frozen=True, eq=False)
class Lineup:
    """Records at their places, and how alike each is to what answers each release."""

    similarity: tuple[Tensor, ...]  # (a, n) for each measure; larger is more alike
    release: Tensor  # (n,) the release that a place belongs to; -1: a stranger's place
    stratum: Tensor  # (n,)
    redealt: Redealt | None = None

    def __post_init__(self) -> None:
        places = len(self.release)
        shapes = {tuple(one.shape) for one in self.similarity}
        if len(shapes) != 1 or len(self.stratum) != places or next(iter(shapes))[1] != places:
            raise ExhumeError(f"line-up: {places} places, but similarities of shape {shapes}")
        if places and int(self.release.max()) >= next(iter(shapes))[0]:
            raise ExhumeError("line-up: a target belongs to a release that nothing answers")

    def score(
        self,
        key: Key,
        *,
        strangers: int = USUAL,
        draws: int = 0,
        tests: int = 1,
        only: Tensor | None = None,
        before: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> LineupScore:
        """strangers: of each target, drawn once from its stratum; never of its own release.

        draws: of permutations; 0: the usual number, more if so many tests of the audit could not do with it.

        only: (b,) releases whose targets are counted, chosen without the records; None: all. before:
        strangers of an earlier draw, who are drawn again only where there are no others.
        """
        drawn = self._strangers(strangers, key.fold("strangers"), before)
        draws = draws or max(_ANEW if self._entered else _DRAWS, ceil(tests / LEVEL))
        counted = self.release >= 0
        if only is not None:
            counted &= torch.isin(self.release, only)
            drawn = {place: others for place, others in drawn.items() if bool(counted[place])}
        return self._scored(drawn, draws, key.fold("permutations"), int(counted.sum()))

    @property
    def _entered(self) -> bool:
        return self.redealt is not None and self.redealt.entered

    def dealt(self, most: int, key: Key) -> tuple[int, int, int] | None:
        """Identified targets, targets and strangers of each, where no two targets share a stranger.

        None: there are not enough of them.
        """
        drawn: dict[int, Tensor] = {}
        for label in torch.unique(self.stratum).tolist():
            same = self.stratum == label
            targets = (same & (self.release >= 0)).nonzero()[:, 0].tolist()
            others = (same & (self.release < 0)).nonzero()[:, 0]
            each = min(most, len(others) // max(1, len(targets)))
            if targets and each < FEWEST:
                return None
            order = others[
                torch.randperm(len(others), generator=key.fold("dealt", label).generator())
            ]
            drawn |= {place: order[i * each : (i + 1) * each] for i, place in enumerate(targets)}
        first = [self._rank(place, others) == 1 for place, others in drawn.items()]
        return sum(first), len(first), min((len(own) for own in drawn.values()), default=0)

    def _strangers(
        self, most: int, key: Key, before: Mapping[int, Tensor] = MappingProxyType({})
    ) -> dict[int, Tensor]:
        """Places of the strangers of every target that has enough of them."""
        drawn = {}
        generator = key.generator()
        entered = self._entered
        for place in (self.release >= 0).nonzero()[:, 0].tolist():
            same = self.stratum == self.stratum[place]
            apart = self.release < 0 if entered else self.release != self.release[place]
            others = (same & apart).nonzero()[:, 0]
            order = others[torch.randperm(len(others), generator=generator)]
            if place in before:
                again = torch.isin(order, before[place])
                order = torch.cat([order[~again], order[again]])
            if len(others) >= FEWEST:
                drawn[place] = order[:most]
        return drawn

    def _scored(self, drawn: dict[int, Tensor], draws: int, key: Key, meant: int) -> LineupScore:
        """meant: targets, those without enough strangers among them."""
        targets = torch.tensor(sorted(drawn), dtype=torch.long)
        ranks = torch.tensor([self._rank(i, drawn[i]) for i in targets.tolist()], dtype=torch.long)
        if self.redealt is not None and self.redealt.depends:
            counts = self._permuted_anew(self.redealt, drawn, draws, key)
        else:
            counts = self._permuted(drawn, draws, key)
        at_least = (counts[:, None] >= torch.arange(len(targets) + 2)).sum(0)
        tail = (1 + at_least).double() / (1 + draws)  # p of every possible count
        return LineupScore(
            targets,
            ranks,
            chance=float(counts.double().mean()) / max(1, len(targets)),
            tail=tail,
            left_out=meant - len(targets),
            fewest=min((len(own) for own in drawn.values()), default=0),
            strangers=drawn,
        )

    def _rank(self, place: int, strangers: Tensor) -> int:
        rows = [one[self.release[place]] for one in self.similarity]
        return 1 + min(int((row[strangers] >= row[place]).sum()) for row in rows)

    def _permuted(self, drawn: dict[int, Tensor], draws: int, key: Key) -> Tensor:
        """(draws,) T of random permutations. Only places that matter are permuted: the rest is no one's."""
        counts = torch.zeros(draws, dtype=torch.long)
        generator = key.generator()
        for label in torch.unique(self.stratum).tolist():
            own = [i for i in drawn if int(self.stratum[i]) == label]
            if not own:
                continue
            used, at = self._used(own, drawn)
            rivals = [_Rivals(int(at[i]), at[drawn[i]], len(used)) for i in own]
            rows = [[_ordered(m[self.release[i]][used]) for m in self.similarity] for i in own]
            for start in range(0, draws, _AT_ONCE):
                count = min(_AT_ONCE, draws - start)
                uniform = torch.rand(count, len(used), generator=generator)
                seat = argsort_rows(uniform).T.contiguous()
                for one, measures in zip(rivals, rows, strict=True):
                    won = torch.zeros(count, dtype=torch.bool)
                    for order, level in measures:
                        won |= one.first(order, level, seat)
                    counts[start : start + count] += won
        return counts

    def _permuted_anew(
        self, redealt: Redealt, drawn: dict[int, Tensor], draws: int, key: Key
    ) -> Tensor:
        """(draws,) T of random permutations, each with the answers that it makes."""
        counts = torch.zeros(draws, dtype=torch.long)
        generator = key.generator()
        moved = self._moved(drawn)
        answered: dict[int, list[int]] = {}
        for i in drawn:
            answered.setdefault(int(self.release[i]), []).append(i)
        seats = {release: (own, self._used(own, drawn)) for release, own in answered.items()}
        for start in range(0, draws, _AT_ONCE):
            count = min(_AT_ONCE, draws - start)
            seated = torch.arange(redealt.records).repeat(count, 1)  # the record at each place
            for places in moved:
                uniform = torch.rand(count, len(places), generator=generator)
                seated[:, places] = places[argsort_rows(uniform)]
            for release, some, measures in redealt.each(seated):
                if release not in seats:
                    continue
                own, (used, at) = seats[release]
                won = torch.zeros(len(some), len(own), dtype=torch.bool)
                there = seated[some[:, None], used]
                for alike in measures:
                    at_place = alike.gather(1, there)
                    for number, i in enumerate(own):
                        won[:, number] |= at_place[:, at[i]] > at_place[:, at[drawn[i]]].amax(1)
                counts[start + some] += won.sum(1)
        return counts

    def _used(self, own: list[int], drawn: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """Places of these targets and of their strangers, and (n,) where each place is among them."""
        used = torch.unique(torch.cat([torch.tensor(own), *(drawn[i] for i in own)]))
        at = torch.full((len(self.release),), -1)
        at[used] = torch.arange(len(used))
        return used, at

    def _moved(self, drawn: dict[int, Tensor]) -> list[Tensor]:
        """Places of each stratum that matter: of everybody who is counted, and of all targets."""
        matter = self.release >= 0
        for strangers in drawn.values():
            matter[strangers] = True
        labels = torch.unique(self.stratum[list(drawn)]) if drawn else []
        return [(matter & (self.stratum == label)).nonzero()[:, 0] for label in labels]


def argsort_rows(values: Tensor) -> Tensor:
    """(d, n) `values.argsort(1)` of (d, n) float32 numbers of at least 0, in a tenth of the time."""
    bits = values.view(torch.int32).long()  # in the order of the numbers
    both = (bits << 32) | torch.arange(values.shape[1])
    both.numpy().sort(axis=1)
    found, bits = both & 0xFFFFFFFF, both >> 32
    tied = (bits[:, 1:] == bits[:, :-1]).any(1)
    found[tied] = values[tied].argsort(1)  # which of them is first depends on the processor
    return found


def _ordered(row: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) similarities: the order of the records, the most alike first, and the level of each place."""
    values, order = row.sort(descending=True)
    return order, torch.cat([torch.zeros(1), (values[1:] < values[:-1]).float()]).cumsum(0)


class _Rivals:
    """A target's place and its strangers' places among the n of a stratum."""

    def __init__(self, place: int, strangers: Tensor, places: int) -> None:
        # (n,) 0 at the places that are meant, infinity at others, to be added to levels
        self.own, self.strange = (torch.full((places,), torch.inf) for _ in range(2))
        self.strange[strangers] = 0
        self.own[place] = 0
        self.ahead = min(
            places, 1 + 4 * places // (len(strangers) + 1)
        )  # the leader is mostly among these

    def first(self, order: Tensor, level: Tensor, seat: Tensor) -> Tensor:
        """(d,) bool: is the record at the target's place strictly more alike than the strangers' are?

        order, level: (n,) of the records' similarities, as `_ordered` gives them; seat: (n, d) the place of
        each record.
        """
        mine, theirs = self._levels(seat.index_select(0, order[: self.ahead]), level)
        rest = theirs.isinf().nonzero()[:, 0]
        if len(rest):
            mine[rest], theirs[rest] = self._levels(seat.index_select(1, rest)[order], level)
        return mine < theirs

    def _levels(self, places: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """(d,) levels of the target's record and of the strangers' best; infinite where there is none.

        places: (k, d) of the k most alike records; level: (n,) of the similarities.
        """
        mine, theirs = (
            (
                at.index_select(0, places.flatten()).view(places.shape) + level[: len(places), None]
            ).amin(0)
            for at in (self.own, self.strange)
        )
        return mine, theirs


Alike = Callable[[Tensor, Tensor], Tensor]
"""(k, *shape) candidates and (n, *shape) records to (k, n): larger is more alike."""

Measure = Callable[[Tensor], Tensor]
"""(k, *shape) candidates to (k, n): how alike each is to every record of a pool."""


def likeness_anew(redealt: Redealt) -> tuple[Tensor, ...]:
    """M[a, r] for each measure, everybody at his own place."""
    rows: dict[int, Tensor] = {}
    for release, some, measures in redealt.each(torch.arange(redealt.records)[None]):
        every = torch.stack(measures)  # (measures, 1 or 0, n)
        nobody = every.new_full((len(measures), every.shape[2]), -torch.inf)
        rows[release] = every[:, 0] if len(some) else nobody
    return torch.stack([rows.get(a, nobody) for a in range(max(rows) + 1)], 1).unbind()


def likeness(
    candidates: Sequence[Tensor], pool: Tensor, alike: Alike | None = None
) -> tuple[Tensor, ...]:
    """M[a, r] for each measure: the best over all candidates (k, *shape) that answer release a.

    Minus infinity where nothing answers a release, so that nobody is identified by it.
    """
    if not len(pool):
        return (torch.zeros(len(candidates), 0, dtype=torch.float64),)
    nobody = torch.full((len(pool),), -torch.inf, dtype=torch.float64)
    finite = [answering(found) for found in candidates]
    return tuple(
        torch.stack([each(good).amax(0) if len(good) else nobody for good in finite])
        for each in measures_of(pool, alike)
    )


def answering(found: Tensor) -> Tensor:
    """(j, *shape) of the candidates (k, *shape): those that are finite."""
    return found[torch.isfinite(found.flatten(1).double()).all(1)] if len(found) else found


def measures_of(pool: Tensor, alike: Alike | None = None) -> tuple[Measure, ...]:
    """What compares (k, *shape) candidates with the records (n, *shape) of the pool.

    Images (c, h, w): minus the squared error, and the signed normalised cross-correlation. Vectors: minus the
    squared error on columns scaled by the pool. Token sequences (integers): the share of tokens in place.
    """
    if alike is not None:
        given = alike
        return (lambda found: given(found.to(pool.device), pool).cpu(),)
    if not pool.is_floating_point():
        return (lambda found: (found.to(pool.device)[:, None] == pool).double().mean(2).cpu(),)
    flat = pool.flatten(1).double()
    image = pool.ndim == 4
    scale = torch.ones_like(flat[0]) if image else flat.std(0).clamp_min(1e-12)
    own = flat / scale

    def error(found: Tensor) -> Tensor:
        given = found.to(pool.device).flatten(1).double()
        return -torch.cdist(given / scale, own).square().cpu() / flat.shape[1]

    if not image:
        return (error,)
    units = directions(flat)

    def correlation(found: Tensor) -> Tensor:
        return (directions(found.to(pool.device).flatten(1).double()) @ units.T).cpu()

    return error, correlation


def strangers_for(targets: int, tests: int, measures: int) -> int:
    """As many strangers of each target as make all targets together significant, were all identified."""
    wanted = USUAL
    while wanted < MOST and (measures / (wanted + 1)) ** max(1, targets) > LEVEL / max(1, tests):
        wanted = min(MOST, 2 * wanted + 1)
    return wanted


def among_tests(row: LineupRow, tests: int) -> LineupRow:
    """What the line-up can notice as one of so many tests: the strictest level that Holm may ask of it."""
    if not row.tail:
        return row
    level = LEVEL / max(1, tests)
    needed = next((k for k, p in enumerate(row.tail) if p <= level), row.targets + 1)
    return replace(row, needed=needed, detectable=rate_reaching(needed, row.targets))


def holm(values: Sequence[float]) -> list[float]:
    """Adjusted for all tests of an audit: significant at level alpha are those of at most alpha."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, largest = [1.0] * len(values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - place) * values[index]))
        adjusted[index] = largest
    return adjusted
