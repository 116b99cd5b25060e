"""The planner: every attack that could be run, what it would cost, and which of them fit the budget.

What is not run is told with its reason. Silence is never shown as safety.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from exhume.auditing.findings import Findings
from exhume.contract import ExhumeError, Progress
from exhume.report.folder import RunFolder

__all__ = ["Offer", "Planned", "choose", "duration_of", "seconds_in"]

Run = Callable[[RunFolder, Progress], list[Findings]]


@dataclass(frozen=True, eq=False)
class Offer:
    """An attack, or several that share their work, ready to be run."""

    id: str
    name: str
    threat: str  # what the adversary sees and knows, in words
    seconds: float  # estimated
    run: Run | None
    why_not: str = ""  # why it cannot be mounted; then `run` is None
    asked: bool = True  # False: an extra, that runs only where a budget leaves room for it
    needs: str = ""  # the offer whose work it goes on from
    release: str = ""  # what it is an attack on


@dataclass(frozen=True, eq=False)
class Planned:
    """An offer, taken or left."""

    offer: Offer
    taken: bool
    why: str = ""  # it was left

    def told(self, seconds: float | None = None) -> dict[str, Any]:
        """For result.json. seconds: what it really took."""
        offer = self.offer
        row: dict[str, Any] = {
            "id": offer.id,
            "name": offer.name,
            "release": offer.release,
            "threat": offer.threat,
            "estimated_seconds": round(offer.seconds, 1),
            "run": self.taken,
            "why": self.why,
        }
        return row if seconds is None else {**row, "seconds": seconds}


def choose(offers: Sequence[Offer], budget: float | None) -> list[Planned]:
    """In the order given: what applies and fits. Without a budget: all that was asked for."""
    planned: list[Planned] = []
    left = budget
    for offer in offers:
        before = next((one for one in planned if one.offer.id == offer.needs), None)
        if offer.run is not None and before is not None and not before.taken:
            why = f"it goes on from {before.offer.name}, which was left out"
            planned.append(Planned(offer, taken=False, why=why))
        elif offer.run is None:
            planned.append(Planned(offer, taken=False, why=f"does not apply: {offer.why_not}"))
        elif left is None:
            why = "" if offer.asked else "only with --budget; it would take " + _about(offer)
            planned.append(Planned(offer, taken=offer.asked, why=why))
        elif offer.seconds <= left:
            left -= offer.seconds
            planned.append(Planned(offer, taken=True))
        else:
            why = f"it would take {_about(offer)}, {duration_of(left)} of the budget were left"
            planned.append(Planned(offer, taken=False, why=why))
    return planned


def _about(offer: Offer) -> str:
    return f"about {duration_of(offer.seconds)}"


def duration_of(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds_in(text: str) -> float | None:
    """`90`, `90s`, `10m` or `1.5h`; nothing: no limit."""
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not seconds:
        raise ExhumeError(f"budget: {text!r} is not a time such as 90s, 10m or 1.5h")
    return seconds
