"""Controls: the same attack on easier versions of the same system, to earn the words "no leak found".

A rung differs from the user's system in one named respect and keeps the attack's effort. It works if the
line-up is significant and at least half of its targets are identified. The easiest rung comes first; then
the distance to the user's system is halved, as far as time allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exhume.auditing.attack import line_ups
from exhume.auditing.case import Ladder, Rung, rows_of
from exhume.core.contract import ExhumeError, NotApplicable, Progress
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

    @staticmethod
    def nothing(release: str, attacks: Mapping[str, str], why: str) -> LadderResult:
        reach = {a: Reach(release, a, "", "", 0.0, why) for a in attacks}
        return LadderResult((), reach)


def climb(
    release: str,
    ladder: Ladder | None,
    attacks: Mapping[str, str],
    own: Mapping[str, LineupRow],
    *,
    tests: int,
    seconds: float | None,
    folder: RunFolder,
    progress: Progress,
) -> LadderResult:
    """attacks: their names by id; own: their line-ups on the user's system; tests: of the audit.

    seconds: of the budget; None: no limit.
    """
    if ladder is None or not ladder.rungs:
        return LadderResult.nothing(release, attacks, "there is no easier version of it to try")
    if seconds is not None and ladder.rungs[0].seconds > seconds:
        need = duration_of(ladder.rungs[0].seconds)
        return LadderResult.nothing(
            release, attacks, f"the easiest one takes about {need}, more than half of the budget"
        )
    tried: dict[int, dict[str, ControlRow]] = {}
    named = attacks
    low, high = -1, len(ladder.rungs)  # the nearest that works, the first that fails
    left = seconds
    place: int | None = 0
    while place is not None:
        rung = ladder.rungs[place]
        progress(f"control: {rung.words}", len(tried), _MOST)
        rows = _try(release, ladder, rung, attacks, tests=tests, folder=folder, progress=progress)
        tried[place] = {row.attack: row for row in rows}
        if len(tried) == 1:
            attacks = _strongest(attacks, rows)
            rows = [row for row in rows if row.attack in attacks]
        left = None if left is None else left - rung.seconds
        if any(row.works for row in rows):
            low = place
        else:
            high = place
        place = _next(ladder, low, high, len(tried), left)
    progress("control", _MOST, _MOST)
    controls = tuple(row for place in sorted(tried) for row in tried[place].values())
    reach = {
        a: _reach(release, ladder, (a, name), [c for c in controls if c.attack == a], own[a])
        for a, name in named.items()
    }
    return LadderResult(controls, reach, sum(ladder.rungs[place].seconds for place in tried))


def _strongest(attacks: Mapping[str, str], rows: Sequence[ControlRow]) -> dict[str, str]:
    """Of all attacks that are silent, those that find most where there is something to find."""
    best = sorted(rows, key=lambda row: (row.works, row.identified), reverse=True)
    return {row.attack: attacks[row.attack] for row in best[:_CLIMBING]}


def _next(ladder: Ladder, low: int, high: int, tried: int, left: float | None) -> int | None:
    """Half-way between what works and what does not; None: enough is known."""
    if low < 0 or high - low < 2 or tried >= _MOST:
        return None
    middle = (low + high) // 2
    fits = left is None or ladder.rungs[middle].seconds <= left
    return middle if fits else None


def _try(
    release: str,
    ladder: Ladder,
    rung: Rung,
    attacks: Mapping[str, str],
    *,
    tests: int,
    folder: RunFolder,
    progress: Progress,
) -> list[ControlRow]:
    note, found = "", dict[str, LineupRow]()
    try:
        easier = rung.case(folder, progress)
        tried = [row for row in rows_of(easier) if row.id in attacks and not row.why_not]
        found = line_ups(easier, tried, folder.store(), progress, tests=tests)
    except (ExhumeError, NotApplicable) as why:
        note = str(why)
    rows = []
    for attack in attacks:
        row = found.get(attack)
        about = (release, attack, ladder.respect, rung.value, rung.words)
        if row is None:
            rows.append(ControlRow(*about, note=note or "the attack does not apply to it"))
            continue
        works = row.targets > 0 and row.p <= LEVEL and row.identified >= row.targets / 2
        rows.append(ControlRow(*about, row.identified, row.targets, row.p, works))
    return rows


def _reach(
    release: str,
    ladder: Ladder,
    named: tuple[str, str],
    rows: Sequence[ControlRow],
    own: LineupRow,
) -> Reach:
    """The sentence names every rung that was tried, easiest first."""
    (attack, name), working = named, [row for row in rows if row.works]
    said = [f"{row.identified} of {row.targets} {row.words}" for row in rows if not row.note]
    said.append(f"{own.identified} of {own.targets} {ladder.words}")
    sentence = f"{name} identifies {', '.join(said)}."
    if failed := next((row.note for row in rows if row.note), ""):
        sentence += f" Not every version could be made: {failed}."
    if not working:
        return Reach(release, attack, ladder.respect, "", 0.0, sentence.rstrip("."))
    best = working[-1]
    low = clopper_pearson(best.identified, best.targets)[0]
    return Reach(release, attack, ladder.respect, best.words, low, sentence)


def reach_chart(
    release: str,
    ladder: Ladder,
    climbed: LadderResult,
    own: Mapping[str, LineupRow],
    names: Mapping[str, str],
) -> Chart | None:
    """Share identified on every rung that was tried, and on the user's own system."""
    series: dict[str, list[Point]] = {}
    for attack, name in names.items():
        rows = [(c.value, c.identified, c.targets) for c in climbed.controls if c.attack == attack]
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
