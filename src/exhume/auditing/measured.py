"""What attacks reached, beside what a stated guarantee allows any attack: certificates for a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from exhume.bounds.prior import Certificate
from exhume.core.results import LimitRow, Limits

__all__ = ["Measured"]

_INSIDE = ("surely", "of")  # of a certificate: not in the result


@dataclass(frozen=True, eq=False)
class Measured:
    """Every comparison, by attack and game, and what has to be said about them."""

    made: Mapping[tuple[str, str], Certificate]
    notes: tuple[str, ...]

    def section(self) -> Limits:
        """For the result: numbers and words, no records."""
        rows = []
        for (attack, game), one in self.made.items():
            numbers = {name: value for name, value in asdict(one).items() if name not in _INSIDE}
            rows.append(
                LimitRow(attack=attack, game=game, **numbers, rate=one.rate, alarm=one.alarm)
            )
        return Limits(self.alarm, self.notes, tuple(rows))

    @property
    def alarm(self) -> str:
        """In words; empty where there is none."""
        loud = [
            f"{attack} ({game}): {one.sentence()}"
            for (attack, game), one in self.made.items()
            if one.alarm
        ]
        return " ".join(loud)
