"""Easier versions of a split: shallower cuts of the same network, or the same cut without its defence.

A version is met with the same attackers at the same effort. What they train at a cut that was attacked
before lies in the store already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from exhume import readers
from exhume.auditing.controls import RUNG_TARGETS, Ladder, Rung
from exhume.auditing.split.cut import CutAudit, joined, slug
from exhume.auditing.split.reading import LoadedSplit
from exhume.core.contract import Progress
from exhume.core.evidence import LineupRow
from exhume.models.split.pipeline import Pipeline
from exhume.report.folder import RunFolder
from exhume.settings import SplitSettings

__all__ = [
    "fewer_targets",
    "shallower_cuts",
    "where_defended",
    "without_defence",
]

AuditOf = Callable[[RunFolder, Progress], CutAudit]


def fewer_targets(parts: readers.Split) -> readers.Split:
    """The first few targets; the others are strangers."""
    few, rest = parts.target[:RUNG_TARGETS], parts.target[RUNG_TARGETS:]
    return replace(parts, target=few, test=joined(parts.test, rest))


def shallower_cuts(owned: LoadedSplit, audit_of: AuditOf, seconds: float) -> Ladder | None:
    """Every point before the one in use at which the attackers can work; None: there is none."""
    own = f"after {owned.first[0]}"

    def rung(name: str) -> Rung:
        where = f"after {name}"
        run = _runner(lambda: owned.pipeline(name), where, own, audit_of)
        return Rung(name, where, seconds, run)

    rungs = tuple(rung(name) for name in owned.shallower())
    if not rungs:
        return None
    return Ladder("last layer of the client's head", owned.first[0], own, rungs)


def without_defence(
    settings: SplitSettings,
    owned: LoadedSplit,
    audit_of: AuditOf,
    plain: Callable[[], Pipeline],
    seconds: float,
) -> Ladder:
    """plain: the network without a defence, trained as the defended one was."""
    own = where_defended(settings, owned)
    where = f"after {owned.first[0]} without {settings.defend}"
    rung = Rung("none", "without the defence", seconds, _runner(plain, where, own, audit_of))
    return Ladder("defence", settings.defend, f"with {settings.defend}", (rung,))


def where_defended(settings: SplitSettings, owned: LoadedSplit) -> str:
    return f"after {owned.first[0]} with {settings.defend}"


def _runner(
    pipeline: Callable[[], Pipeline], where: str, own: str, audit_of: AuditOf
) -> Callable[[Sequence[str], RunFolder, Progress], Mapping[str, LineupRow]]:
    """own: where the user's split is, by which its attacks are called."""

    def run(
        attacks: Sequence[str], folder: RunFolder, progress: Progress
    ) -> Mapping[str, LineupRow]:
        prefix = f"{slug(own)}-"
        names = {attack.removeprefix(prefix): attack for attack in attacks}
        cut = audit_of(folder, progress).attack(pipeline(), where, list(names))
        rows = {names[name]: one.section.lineup for name, one in cut.found.items()}
        return {attack: row for attack, row in rows.items() if row is not None}

    return run
