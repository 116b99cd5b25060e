"""The planner: every attack that could be run, what it would cost, and which of them fit the budget.

What is not run is named with its reason. Silence is never shown as safety.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exhume.core.contract import Progress
from exhume.core.notation import about, duration_of
from exhume.core.records import Column
from exhume.core.results import Findings, PlannedAttack
from exhume.core.typed_json import to_json
from exhume.report.folder import RunFolder

__all__ = ["AttackOption", "Inputs", "Plan", "PlannedRelease", "plan_attacks"]

Run = Callable[[RunFolder, Progress], list[Findings]]


@dataclass(frozen=True, eq=False)
class AttackOption:
    """An attack, or several that share their work, ready to be run."""

    id: str
    name: str
    threat: str  # what the adversary sees and knows, in words
    seconds: float  # estimated
    run: Run | None
    why_not: str = ""  # why it cannot be mounted; then `run` is None
    asked: bool = True  # False: an extra, that runs only where a budget leaves room for it
    needs: str = ""  # the option whose work it goes on from
    release: str = ""  # what it is an attack on
    records: int = 0  # that it is tried on
    models: int = 0  # that are trained for it
    steps: int = 0  # of its search
    tests: int = 1  # line-ups that it is judged by
    within: Callable[[float], AttackOption | None] | None = (
        None  # on fewer records, in so many seconds
    )


def plan_attacks(
    options: Sequence[AttackOption], budget: float | None
) -> list[tuple[AttackOption, PlannedAttack]]:
    """In the order given: what applies and fits. Without a budget: all that was asked for."""
    planned: list[tuple[AttackOption, PlannedAttack]] = []
    left = budget
    for whole in options:
        option = whole if left is None else _fitting(whole, left)
        before = [
            row for _, row in planned if (row.id, row.release) == (option.needs, option.release)
        ]
        why = ""
        if option.run is None:
            why = f"does not apply: {option.why_not}"
        elif before and not before[0].run:
            why = f"it goes on from {before[0].name}, which was left out"
        elif left is None:
            why = (
                "" if option.asked else f"only with --budget; it would take {about(option.seconds)}"
            )
        elif option.seconds > left:
            why = f"it would take {about(option.seconds)}, {duration_of(left)} of the budget were left"
        else:
            left -= option.seconds
        planned.append((option, _row(option, why)))
    return planned


def _fitting(option: AttackOption, seconds: float) -> AttackOption:
    """As it is if it fits or cannot be made to; else on as many records as do."""
    if option.run is None or option.within is None or option.seconds <= seconds:
        return option
    fewer = option.within(seconds)
    return option if fewer is None else replace(fewer, release=option.release)


def _row(option: AttackOption, why: str) -> PlannedAttack:
    return PlannedAttack(
        id=option.id,
        name=option.name,
        release=option.release,
        threat=option.threat,
        estimated_seconds=round(option.seconds, 1),
        run=not why,
        why=why,
        records=option.records,
        models=option.models,
        steps=option.steps,
    )


@dataclass(frozen=True)
class Inputs:
    """Where a release comes from, with every choice made."""

    data: str
    seed: int
    threads: int
    classes: tuple[str, ...] = ()
    uses: tuple[tuple[int, str], ...] = ()  # how many records, and what for
    columns: tuple[Column, ...] = ()  # of a table
    place: str = ""  # where its models are trained
    size: str = ""  # of the sets that they are trained on, and why
    takes: str = ""  # operations, memory and disk


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
        """Of all attacks that are run, estimated."""
        attacks = (attack for one in self.releases for attack in one.attacks)
        return sum((attack.estimated_seconds for attack in attacks if attack.run), 0.0)

    @property
    def cpu_seconds(self) -> float:
        """Of all attacks that are run, estimated, over all threads."""
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
