"""Axes of the report's charts: where a value lies on the drawing, and its ticks and names as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from exhume.report.words import Number, number

__all__ = [
    "BOTTOM",
    "LEFT",
    "NOTHING",
    "RIGHT",
    "TOP",
    "Axis",
    "LinearAxis",
    "LogAxis",
    "finite",
    "svg",
    "x_axis",
    "y_axis",
]

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 46, 448, 12, 244
NOTHING = Markup('<p class="empty">There are no finite values to draw.</p>')


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis: exponents of ten at its ends, and where these lie on the drawing."""

    low: float
    high: float
    start: int
    end: int

    @staticmethod
    def around(values: list[Number], start: int, end: int) -> LogAxis:
        positive = [math.log10(v) for v in values if v > 0]
        low, high = (min(positive), max(positive)) if positive else (-3.0, 0.0)
        margin = max(0.03 * (high - low), 0.15 if high - low < 0.3 else 0.0)
        return LogAxis(low - margin, high + margin, start, end)

    def fraction(self, value: Number) -> float:
        exponent = math.log10(value) if value > 0 else self.low
        return min(max((exponent - self.low) / (self.high - self.low), 0.0), 1.0)

    def place(self, value: Number) -> float:
        return self.start + self.fraction(value) * (self.end - self.start)

    def ticks(self) -> list[float]:
        decades = range(math.ceil(self.low), math.floor(self.high) + 1)
        if len(decades) > 6:
            return [10.0**e for e in decades[:: math.ceil(len(decades) / 6)]]
        steps = (1, 2, 5) if self.high - self.low < 2.2 else (1,)
        every = [m * 10.0**e for e in range(math.floor(self.low), decades.stop + 1) for m in steps]
        inside = [v for v in every if self.low <= math.log10(v) <= self.high]
        return inside or [10 ** ((self.low + self.high) / 2)]


@dataclass(frozen=True)
class LinearAxis:
    """A plain axis between two values."""

    low: float
    high: float
    start: int
    end: int

    @staticmethod
    def around(values: list[Number], start: int, end: int) -> LinearAxis:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        margin = 0.05 * (high - low) or 0.5 * abs(high) or 0.5
        return LinearAxis(
            low - margin if low < 0 or low > margin else 0.0, high + margin, start, end
        )

    def place(self, value: Number) -> float:
        fraction = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.start + fraction * (self.end - self.start)

    def ticks(self) -> list[float]:
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = unit * next(m for m in (1, 2, 5, 10) if m * unit >= rough)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step) + 1)]


Axis = LogAxis | LinearAxis


def x_axis(axis: Axis, label: str, *, left: int = LEFT, bottom: int = BOTTOM) -> Markup:
    line = Markup('<path class="axis" d="M{0} {1}H{2}"/>').format(left, bottom, RIGHT)
    ticks = (
        Markup(
            '<path class="grid" d="M{0:.1f} {1}V{2}"/><text x="{0:.1f}" y="{3}">{4}</text>'
        ).format(axis.place(v), TOP, bottom, bottom + 17, number(v))
        for v in axis.ticks()
    )
    title = Markup('<text class="name" x="{}" y="{}">{}</text>').format(
        (left + RIGHT) / 2, bottom + 38, label
    )
    return line + Markup("").join(ticks) + title


def y_axis(axis: Axis, label: str) -> Markup:
    ticks = (
        Markup(
            '<path class="grid" d="M{0} {1:.1f}H{2}"/>'
            '<text class="left" x="{3}" y="{4:.1f}">{5}</text>'
        ).format(LEFT, axis.place(v), RIGHT, LEFT - 6, axis.place(v) + 4, number(v))
        for v in axis.ticks()
    )
    return Markup("").join(ticks) + Markup(
        '<text class="name start" x="{}" y="{}">{}</text>'
    ).format(LEFT + 8, TOP + 12, label)


def svg(marks: list[Markup], label: str, *, height: int = HEIGHT) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, height, label, Markup("").join(marks))


def finite(values: Iterable[Number]) -> list[float]:
    return [v for v in map(float, values) if math.isfinite(v)]
