"""What a released thing is to an audit. A new kind of release is a new room with one of these, and a row
in `auditing.rooms`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from exhume.auditing.controls import Ladder
from exhume.auditing.fixes import Fix
from exhume.auditing.plan import AttackOption, Inputs
from exhume.choices import threads_for
from exhume.core.contract import Records, Store
from exhume.core.evidence import Condition
from exhume.core.results import Chart, Findings
from exhume.readers import Reading
from exhume.settings import Brief

__all__ = ["AuditedRelease", "Inputs", "Load", "Room"]

Load = Callable[[str, Reading], Records]
"""(source, how to read it) to records; each set is read once, whoever asks for it."""


@runtime_checkable
class AuditedRelease(Protocol):
    """One released thing, read and checked. A room states what differs from the usual, which is here."""

    @property
    def title(self) -> str:
        """Completes "What stops the leak of …"."""
        ...

    @property
    def deviations(self) -> tuple[str, ...]:
        """From the papers."""
        return ()

    def digests(self) -> dict[str, str]:
        """Of what is no file but decides the result: the same digests, the same run."""
        return {}

    def choose(self, brief: Brief, store: Store) -> Brief:
        """The brief with this release's sizes, steps and threads chosen."""
        threads = threads_for(brief.settings.machine.threads)
        return brief.with_settings(brief.settings.with_values("machine", threads=threads))

    def chosen(self, brief: Brief, store: Store) -> AuditedRelease:
        """This release as the brief, all choices made, has it."""
        ...

    def inputs(self) -> Inputs: ...
    def options(self) -> list[AttackOption]:
        """Every attack that could be run, strongest adversary last."""
        ...

    def conditions(self) -> tuple[Condition, ...]:
        """What the attacks need in order to work here, and whether it is so; none: it was not looked at."""
        return ()

    def ladder(self) -> Ladder | None:
        """Easier versions of the system, on which an attack that found nothing must show that it works."""
        return None

    def fixes(self) -> list[Fix]:
        """What could stop a leak; nothing for a file as it is, which cannot be trained again."""
        return []

    def charts(self, found: Sequence[Findings]) -> list[Chart]:
        return []


@dataclass(frozen=True)
class Room:
    """A kind of release: its section in the brief, the page's title, and how it is read."""

    kind: str
    title: str
    read: Callable[[Brief, Load], AuditedRelease | None]  # None: not released
