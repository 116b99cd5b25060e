"""The pieces of a table of the Ensembler, made by several processes. They meet in the run folder's store.

First the networks, then whatever attackers train; the table itself then only loads. Without processes
nothing is done here, and the table makes its pieces one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from exhume.contract import Attack, Progress, silent
from exhume.report.folder import RunFolder
from exhume.scale import Processes, run_jobs, where_now
from exhume.studies.split.ensembler_rows import THOROUGH, meet, pieces
from exhume.studies.study import Scale

if TYPE_CHECKING:
    from exhume.studies.split.ensembler_tables import Table, Trial

__all__ = ["fill", "make_all"]

S = TypeVar("S")
J = TypeVar("J")

_LONGEST = ("ensembler", "dr_ensemble")  # several networks each


@dataclass(frozen=True)
class _Work:
    table: Table
    scale: Scale
    seed: int
    folder: Path

    @cached_property
    def trial(self) -> Trial:
        from exhume.studies.split.ensembler_tables import Trial

        return Trial.of(self.table, self.scale, self.seed, RunFolder(self.folder), silent)


@dataclass(frozen=True)
class _Piece:
    """A network to be trained, or an attacker against one that is."""

    defence: str
    attack: Attack | None = None
    head: bool = False


def fill(table: Table, scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> None:
    """Make every piece that the store lacks."""
    if not isinstance(where_now(), Processes):
        return
    work, setting = _Work(table, scale, seed, folder.path), table.scales[scale]
    order = sorted(table.defences, key=lambda name: name not in _LONGEST)
    attacks = [
        _Piece(name, attack, head)
        for name in order
        for attack, head in pieces(
            setting.attackers,
            setting.ensembler.bodies if name in _LONGEST else 1,
            selected=setting.ensembler.selected,
            every=name in THOROUGH,
        )
    ]
    networks = [_Piece(name) for name in order]
    make_all("training the networks", _make, networks, shared=work, progress=progress)
    make_all("training the attackers", _make, attacks, shared=work, progress=progress)


def make_all(
    stage: str,
    make: Callable[[S, J], None],
    jobs: Sequence[J],
    *,
    shared: S,
    progress: Progress,
) -> None:
    """Each job leaves what it makes in the store."""
    progress(stage, 0, len(jobs))
    for done, _ in enumerate(run_jobs(make, jobs, shared=shared), 1):
        progress(stage, done, len(jobs))


def _make(work: _Work, piece: _Piece) -> None:
    trial = work.trial
    pipeline = trial.pipeline(piece.defence)
    if piece.attack is not None:
        met = replace(trial.met, distance=None)
        meet(met, pipeline, piece.attack, piece.defence, head=piece.head)
