"""The planner: every attack that could be run, what it would cost, and which of them fit the budget.

What is not run is named with its reason. Silence is never shown as safety.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exhume.auditing.case import Inputs, Row
from exhume.core.notation import about, duration_of
from exhume.core.results import PlannedAttack
from exhume.core.typed_json import to_json


def plan_rows(
    rows: Sequence[tuple[str, Row]], budget: float | None
) -> list[tuple[Row, PlannedAttack]]:
    """Rows by the name of their release, in the order given: what applies and fits.

    Without a budget: all that was asked for.
    """
    planned: list[tuple[Row, PlannedAttack]] = []
    left = budget
    for release, whole in rows:
        row = whole if left is None else _fitting(whole, left)
        before = [one for _, one in planned if (one.id, one.release) == (row.needs, release)]
        why = ""
        if row.why_not:
            why = f"does not apply: {row.why_not}"
        elif before and not before[0].run:
            why = f"it goes on from {before[0].name}, which was left out"
        elif left is None:
            extra = row.when == "extra"
            why = f"only with --budget; it would take {about(row.seconds)}" if extra else ""
        elif row.seconds > left:
            why = f"it would take {about(row.seconds)}, {duration_of(left)} of the budget were left"
        else:
            left -= row.seconds
        planned.append((row, _planned(row, release, why)))
    return planned


def _fitting(row: Row, seconds: float) -> Row:
    """As it is if it fits or cannot be made to; else on as many records as do."""
    if row.why_not or row.fewer is None or row.seconds <= seconds:
        return row
    return row.fewer(seconds) or row


def _planned(row: Row, release: str, why: str) -> PlannedAttack:
    return PlannedAttack(
        id=row.id,
        name=row.spec.name,
        release=release,
        threat=row.threat,
        estimated_seconds=round(row.seconds, 1),
        run=not why,
        why=why,
        records=row.records,
        models=row.models,
        steps=row.steps,
    )


@dataclass(frozen=True, eq=False)
class PlannedRelease:
    kind: str
    name: str
    inputs: Inputs
    attacks: tuple[PlannedAttack, ...]
    control_seconds: float | None = None  # of the easiest control, estimated; None: there is none
    given: int = 0  # records that were read for it

    @property
    def records(self) -> str:
        """What is used of the records that are given."""
        used = sum(count for count, _ in self.inputs.uses)
        among = (
            f"{used:,} of the {self.given:,}" if used and self.given else f"{used or self.given:,}"
        )
        roles = ", ".join(f"{count:,} {what}" for count, what in self.inputs.uses if count)
        where = self.inputs.data or "files"
        return f"records: {among} in {where}{f': {roles}' if roles else ''}"


@dataclass(frozen=True, eq=False)
class Plan:
    """What an audit would do, before it does it."""

    releases: tuple[PlannedRelease, ...]
    budget: float | None

    @property
    def seconds(self) -> float:
        """Seconds of all attacks that are run, estimated."""
        attacks = (attack for one in self.releases for attack in one.attacks)
        return sum((attack.estimated_seconds for attack in attacks if attack.run), 0.0)

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of all attacks that are run, estimated, over all threads."""
        rows = ((one.inputs.threads, attack) for one in self.releases for attack in one.attacks)
        return sum((threads * a.estimated_seconds for threads, a in rows if a.run), 0.0)

    def lines(self) -> list[str]:
        """For the console."""
        lines = []
        for one in self.releases:
            lines.append(f"plan: {one.name} (seed {one.inputs.seed}, threads {one.inputs.threads})")
            lines += [f"  {one.records}"] if one.given or one.inputs.uses else []
            lines += [f"  {said}" for said in (one.inputs.size, one.inputs.takes) if said]
            lines += [f"  models are trained {one.inputs.place}"] if one.inputs.place else []
            lines += [f"  attack: {_line(attack)}" for attack in one.attacks if attack.run]
            lines += [f"  left out: {a.name}: {a.why}" for a in one.attacks if not a.run]
            if one.control_seconds is not None and any(a.run for a in one.attacks):
                seconds = about(one.control_seconds)
                lines.append(f"  if nothing comes back: controls, the easiest takes {seconds}")
        limit = "no limit" if self.budget is None else f"budget {duration_of(self.budget)}"
        cpu = f"{max(1, round(self.cpu_seconds)):,} CPU seconds"
        return [*lines, f"plan: {about(self.seconds)} in all, {cpu} ({limit})"]

    def to_json(self) -> dict[str, Any]:
        return {
            "releases": [
                {
                    "kind": one.kind,
                    "name": one.name,
                    "seed": one.inputs.seed,
                    "data": one.inputs.data,
                    "threads": one.inputs.threads,
                    "place": one.inputs.place,
                    "size": one.inputs.size,
                    "takes": one.inputs.takes,
                    "given": one.given,
                    "uses": {what: count for count, what in one.inputs.uses},
                    "attacks": to_json(one.attacks),
                    "control_seconds": one.control_seconds,
                }
                for one in self.releases
            ],
            "budget_seconds": self.budget,
            "estimated_seconds": round(self.seconds, 1),
            "estimated_cpu_seconds": round(self.cpu_seconds, 1),
        }


def _line(attack: PlannedAttack) -> str:
    counts = {"records": attack.records, "models": attack.models, "steps": attack.steps}
    sizes = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f"{attack.name}: {', '.join([*sizes, about(attack.estimated_seconds)])}"
