"""Controls: the same attack on easier versions of the same system, to earn the words "no leak found".

A rung differs from the user's system in one named respect and keeps the attack's effort. It works if the
line-up is significant and at least half of its targets are identified. The easiest rung that earns something
comes first; then the distance to the user's system is halved, as far as time allows. Where it does not work,
easier ones only tell how far away the system is: a record that counts 64 times says nothing of one that
counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exhume.auditing.attack import line_ups
from exhume.auditing.case import Ladder, Rung, rows_of
from exhume.auditing.plan import stopped
from exhume.core.contract import ExhumeError, Progress
from exhume.core.errors import STOPPED
from exhume.core.evidence import ControlRow, LineupRow, Reach
from exhume.core.notation import duration_of
from exhume.core.results import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.intervals import clopper_pearson
from exhume.score.lineup import LEVEL

_CLIMBING = 2  # attacks that are tried beyond the easiest rung
_MOST = 4  # rungs of a ladder that are tried


@dataclass(frozen=True, eq=False)
class LadderResult:
    controls: tuple[ControlRow, ...]
    reach: dict[str, Reach]  # by attack
    seconds: float = 0.0  # of what was tried, estimated

    @property
    def earned(self) -> bool:
        """Some attack works on a version that shows something of the system itself."""
        return any(reach.nearest for reach in self.reach.values())

    def with_more(self, other: LadderResult) -> LadderResult:
        """With what another ladder of the same system has shown; every attack keeps what it has earned."""
        reach = {}
        for attack, first in self.reach.items():
            second = other.reach[attack]
            best = second if second.nearest and not first.nearest else first
            if not (first.nearest or second.nearest):
                sentence = f"{first.sentence}. {second.sentence}"
                best = replace(first, sentence=sentence, distance=second.distance)
            reach[attack] = best
        return LadderResult(self.controls + other.controls, reach, self.seconds + other.seconds)

    @staticmethod
    def nothing(release: str, attacks: Mapping[str, str], why: str) -> LadderResult:
        reach = {a: Reach(release, a, "", "", 0.0, why) for a in attacks}
        return LadderResult((), reach)


def climb(
    release: str,
    ladders: Sequence[Ladder],
    attacks: Mapping[str, str],
    own: Mapping[str, LineupRow],
    *,
    tests: int,
    seconds: float | None,
    folder: RunFolder,
    progress: Progress,
) -> LadderResult:
    """attacks: their names by id; own: their line-ups on the user's system; tests: of the audit.

    seconds: of the budget; None: no limit. A ladder is only climbed where those before have shown nothing.
    """
    climber = _Climber(release, attacks, own, tests, folder, progress)
    climbed = LadderResult.nothing(release, attacks, "there is no easier version of it to try")
    left = seconds
    for ladder in ladders:
        needed = ladder.seconds
        if needed is None:
            continue
        if left is not None and needed > left:
            if not climbed.controls:
                why = f"the easiest one takes about {duration_of(needed)}, {duration_of(left)} were left"
                climbed = LadderResult.nothing(release, attacks, why)
            continue
        more = climber.climb(ladder, left)
        climbed = climbed.with_more(more) if climbed.controls else more
        left = None if left is None else max(0.0, left - more.seconds)
        if climbed.earned:
            break
    return climbed


@dataclass(frozen=True, eq=False)
class _Climber:
    """Silent attacks on a release, to be tried on easier versions of it."""

    release: str
    names: Mapping[str, str]  # of the attacks, by id
    own: Mapping[str, LineupRow]
    tests: int
    folder: RunFolder
    progress: Progress

    def climb(self, ladder: Ladder, left: float | None) -> LadderResult:
        works: dict[int, bool] = {}
        tried: dict[int, dict[str, ControlRow]] = {}
        attacks = list(self.names)
        place: int | None = ladder.first
        while place is not None:
            rung = ladder.rungs[place]
            self.progress(f"control: {rung.words}", len(tried), _MOST)
            rows = self._try(ladder, rung, attacks)
            tried[place] = {row.attack: row for row in rows}
            if len(tried) == 1:  # those that find most where there is something to find climb on
                rows.sort(key=lambda row: (row.works, row.identified), reverse=True)
                rows = rows[:_CLIMBING]
                attacks = [row.attack for row in rows]
            left = None if left is None else left - rung.seconds
            works[place] = any(row.works for row in rows)
            place = _next(ladder, works, left)
        self.progress("control", _MOST, _MOST)
        controls = tuple(row for place in sorted(tried) for row in tried[place].values())
        reach = {attack: self._reach(ladder, attack, tried) for attack in self.names}
        return LadderResult(controls, reach, sum(ladder.rungs[place].seconds for place in tried))

    def _try(self, ladder: Ladder, rung: Rung, attacks: Sequence[str]) -> list[ControlRow]:
        note, found = "", dict[str, LineupRow]()
        try:
            easier = rung.case(self.folder, self.progress)
            tried = [row for row in rows_of(easier) if row.id in attacks and not row.why_not]
            store = self.folder.store()
            found = line_ups(easier, tried, store, self.progress, tests=self.tests)
        except (ExhumeError, *STOPPED) as why:
            note = stopped(self.progress, why)
        rows = []
        for attack in attacks:
            row = found.get(attack)
            about = (self.release, attack, ladder.respect, rung.value, rung.words)
            if row is None:
                rows.append(ControlRow(*about, note=note or "the attack does not apply to it"))
                continue
            works = row.targets > 0 and row.p <= LEVEL and row.identified >= row.targets / 2
            rows.append(ControlRow(*about, row.identified, row.targets, row.p, works))
        return rows

    def _reach(
        self, ladder: Ladder, attack: str, tried: Mapping[int, Mapping[str, ControlRow]]
    ) -> Reach:
        """The sentence names every rung that was tried, easiest first."""
        rows = {place: tried[place][attack] for place in sorted(tried) if attack in tried[place]}
        own = self.own[attack]
        said = [
            f"{row.identified} of {row.targets} {row.words}"
            for row in rows.values()
            if not row.note
        ]
        said.append(f"{own.identified} of {own.targets} {ladder.words}")
        sentence = f"{self.names[attack]} identifies {', '.join(said)}."
        if failed := next((row.note for row in rows.values() if row.note), ""):
            sentence += f" Not every version could be made: {failed}."
        working = [place for place, row in rows.items() if row.works]
        distance = ladder.rungs[working[-1]].counts if working else None
        earning = [place for place in working if ladder.rungs[place].earns]
        about = (self.release, attack, ladder.respect)
        if not earning:
            return Reach(*about, "", 0.0, sentence.rstrip("."), distance=distance)
        lows = {p: clopper_pearson(rows[p].identified, rows[p].targets)[0] for p in earning}
        best, nearest = max(earning, key=lambda place: (lows[place], place)), rows[earning[-1]]
        return Reach(*about, nearest.words, lows[best], sentence, rows[best].words, distance)


def _next(ladder: Ladder, works: Mapping[int, bool], left: float | None) -> int | None:
    """Half-way between what works and what does not; an easier one where none does; None: that is all."""
    low = max((place for place, good in works.items() if good), default=None)
    if low is None:
        place = min(works) - 1
    else:
        failed = [place for place, good in works.items() if not good and place > low]
        place = (low + min(failed, default=len(ladder.rungs))) // 2
    if place < 0 or place in works or len(works) >= _MOST:
        return None
    fits = left is None or ladder.rungs[place].seconds <= left
    return place if fits else None


def reach_chart(
    release: str,
    ladder: Ladder,
    climbed: LadderResult,
    own: Mapping[str, LineupRow],
    names: Mapping[str, str],
) -> Chart | None:
    """Share identified on every rung that was tried, and on the user's own system."""
    series: dict[str, list[Point]] = {}
    climbed_here = [c for c in climbed.controls if c.respect == ladder.respect]
    if not climbed_here:
        return None
    for attack, name in names.items():
        rows = [(c.value, c.identified, c.targets) for c in climbed_here if c.attack == attack]
        rows.append((f"yours: {ladder.own}", own[attack].identified, own[attack].targets))
        points = []
        for value, count, targets in rows:
            if targets:
                points.append(Point(value, count / targets, *clopper_pearson(count, targets)))
        series[name] = points
    if not any(len(points) > 1 for points in series.values()):
        return None
    title = f"How far the attacks reach: {release}"
    return Chart(title, ladder.respect, "share of records identified", series)
