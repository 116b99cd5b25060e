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
    "LinearAxis",
    "LogAxis",
    "dots",
    "finite",
    "finite_pairs",
    "legend",
    "svg",
    "x_axis",
    "y_axis",
    "y_tick",
]

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 46, 448, 12, 244
NOTHING = Markup('<p class="empty">There are no finite values to draw.</p>')


@dataclass(frozen=True)
class LinearAxis:
    """A plain axis between two values, and where these lie on the drawing."""

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

    def scaled(self, value: Number) -> float:
        return value

    def fraction(self, value: Number) -> float:
        return min(max((self.scaled(value) - self.low) / (self.high - self.low), 0.0), 1.0)

    def place(self, value: Number) -> float:
        return self.start + self.fraction(value) * (self.end - self.start)

    def ticks(self) -> list[float]:
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = unit * next(m for m in (1, 2, 5, 10) if m * unit >= rough)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step) + 1)]


class LogAxis(LinearAxis):
    """A logarithmic axis: low and high are exponents of ten."""

    @staticmethod
    def around(values: list[Number], start: int, end: int) -> LogAxis:
        positive = [math.log10(v) for v in values if v > 0]
        low, high = (min(positive), max(positive)) if positive else (-3.0, 0.0)
        margin = max(0.03 * (high - low), 0.15 if high - low < 0.3 else 0.0)
        return LogAxis(low - margin, high + margin, start, end)

    def scaled(self, value: Number) -> float:
        return math.log10(value) if value > 0 else self.low

    def ticks(self) -> list[float]:
        decades = range(math.ceil(self.low), math.floor(self.high) + 1)
        if len(decades) > 6:
            return [10.0**e for e in decades[:: math.ceil(len(decades) / 6)]]
        steps = (1, 2, 5) if self.high - self.low < 2.2 else (1,)
        every = [m * 10.0**e for e in range(math.floor(self.low), decades.stop + 1) for m in steps]
        inside = [v for v in every if self.low <= math.log10(v) <= self.high]
        return inside or [10 ** ((self.low + self.high) / 2)]


def x_axis(axis: LinearAxis, label: str, *, left: int = LEFT, bottom: int = BOTTOM) -> Markup:
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


def y_axis(axis: LinearAxis, label: str) -> Markup:
    title = Markup('<text class="name start" x="{}" y="{}">{}</text>').format(
        LEFT + 8, TOP + 12, label
    )
    return Markup("").join(y_tick(axis.place(v), number(v)) for v in axis.ticks()) + title


def y_tick(height: float, value: str | int) -> Markup:
    return Markup(
        '<path class="grid" d="M{0} {1:.1f}H{2}"/><text class="left" x="{3}" y="{4:.1f}">{5}</text>'
    ).format(LEFT, height, RIGHT, LEFT - 6, height + 4, value)


def dots(
    points: Iterable[tuple[Number, Number]], across: LinearAxis, up: LinearAxis, style: str
) -> Markup:
    path = "".join(f"M{across.place(a):.1f} {up.place(b):.1f}h0" for a, b in points)
    return Markup('<path class="dots {}" d="{}"/>').format(style, path or "M0 0")


def legend(entries: Iterable[tuple[str, str, str | int]]) -> Markup:
    """Of each series the style of its key, its name, and what is said beside the name, if anything."""
    rows = (
        Markup('<li><i class="key {}"></i>{}{}</li>').format(
            style, name, Markup(" <span>{}</span>").format(beside) if beside != "" else ""
        )
        for style, name, beside in entries
    )
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(rows))


def svg(marks: list[Markup], label: str, *, height: int = HEIGHT) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, height, label, Markup("").join(marks))


def finite(values: Iterable[Number]) -> list[float]:
    return [v for v in map(float, values) if math.isfinite(v)]


def finite_pairs(x: Iterable[Number], y: Iterable[Number]) -> list[tuple[Number, Number]]:
    """In rising order, so that their order in the file says nothing about records."""
    pairs = zip(x, y, strict=True)
    return sorted((a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b))
