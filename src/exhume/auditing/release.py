"""What a released thing is to an audit. A new kind of release is a new room with one of these, and a row
in `auditing.rooms`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from exhume.auditing.fixes import Fix
from exhume.auditing.plan import AttackOption, Inputs
from exhume.contract import Records, Store
from exhume.data import Reading
from exhume.results import Chart, Findings
from exhume.settings import Brief

__all__ = ["AuditedRelease", "Inputs", "Load", "Room"]

Load = Callable[[str, Reading], Records]
"""(source, how to read it) to records; each set is read once, whoever asks for it."""


@runtime_checkable
class AuditedRelease(Protocol):
    """One released thing, read and checked."""

    @property
    def title(self) -> str:
        """Completes "What stops the leak of …"."""
        ...

    @property
    def deviations(self) -> tuple[str, ...]:
        """From the papers."""
        ...

    def digests(self) -> dict[str, str]:
        """What the files that the brief names hold: the same digests, the same run."""
        ...

    def choose(self, brief: Brief, store: Store) -> Brief:
        """The brief with this release's sizes, steps and threads chosen."""
        ...

    def chosen(self, brief: Brief, store: Store) -> AuditedRelease:
        """This release as the brief, all choices made, has it."""
        ...

    def inputs(self) -> Inputs: ...
    def options(self) -> list[AttackOption]:
        """Every attack that could be run, strongest adversary last."""
        ...

    def fixes(self) -> list[Fix]:
        """What could stop a leak; nothing for a file as it is."""
        ...

    def charts(self, found: Sequence[Findings]) -> list[Chart]: ...


@dataclass(frozen=True)
class Room:
    """A kind of release: its section in the brief, the page's title, and how it is read."""

    kind: str
    title: str
    read: Callable[[Brief, Load], AuditedRelease | None]  # None: not released
