"""Charts of a study's result: measured numbers with their intervals, and the paper's beside them.

A chart is plain data, so that it lives in `result.json` and can be drawn again from there. Series over
numbers become lines; series over names become one row of points per name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from exhume.core.results import Chart, Point
from exhume.report.axes import (
    BOTTOM,
    LEFT,
    NOTHING,
    RIGHT,
    TOP,
    LinearAxis,
    LogAxis,
    legend,
    svg,
    x_axis,
    y_axis,
)
from exhume.report.words import TONES, Number, number

__all__ = ["Chart", "Point", "draw_chart", "draw_svg", "style_of"]

_STYLES = 6  # in the style sheet
_ROW = 20  # height of a named row


def draw_chart(chart: Chart) -> Markup:
    drawn, names = draw_svg(chart)
    if not names:
        return NOTHING
    return drawn + legend((f"dot {style_of(i, name)}", name, "") for i, name in enumerate(names))


def style_of(index: int, name: str) -> str:
    """Classes of a series: a verdict has its own; where other colours repeat, points are hollow."""
    return TONES.get(name) or f"s{index % _STYLES}{' again' if index >= _STYLES else ''}"


def draw_svg(chart: Chart) -> tuple[Markup, list[str]]:
    """The drawing alone, and the names of its series in the order of their styles; none: it is empty."""
    kept = {
        name: [p for p in points if math.isfinite(p.y) and _drawable(p.x)]
        for name, points in chart.series.items()
    }
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return Markup(""), []
    named = isinstance(next(iter(kept.values()))[0].x, str)
    return (_rows(chart, kept) if named else _lines(chart, kept)), list(kept)


def _drawable(x: Number | str) -> bool:
    return isinstance(x, str) or math.isfinite(x)


def _bounds(point: Point) -> tuple[Number, Number]:
    ends = [v for v in (point.low, point.y, point.high) if v is not None and math.isfinite(v)]
    return min(ends), max(ends)


def _axis(scale: str, values: list[Number], start: int, end: int) -> LinearAxis:
    return (LogAxis if scale == "log" else LinearAxis).around(values, start, end)


def _lines(chart: Chart, series: Mapping[str, list[Point]]) -> Markup:
    points = [p for several in series.values() for p in several]
    across = _axis(chart.x_scale, [float(p.x) for p in points], LEFT, RIGHT)
    up = _axis(chart.y_scale, [v for p in points for v in _bounds(p)], BOTTOM, TOP)
    marks = [x_axis(across, chart.x), y_axis(up, chart.y)]
    for index, (name, several) in enumerate(series.items()):
        style = style_of(index, name)
        ordered = sorted(several, key=lambda p: float(p.x))
        places = [(across.place(float(p.x)), up.place(p.y)) for p in ordered]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        marks.append(Markup('<path class="line {}" d="{}"/>').format(style, path))
        for point, (x, y) in zip(ordered, places, strict=True):
            low, high = (up.place(v) for v in _bounds(point))
            marks.append(_point(x, y, f"M{x:.1f} {low:.1f}V{high:.1f}", style))
    return svg(marks, f"{chart.title}. {_in_words(series)}")


def _point(x: float, y: float, whisker: str, style: str) -> Markup:
    return Markup(
        '<path class="whisker {s}" d="{whisker}"/>'
        '<circle class="point {s}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    ).format(s=style, x=x, y=y, whisker=whisker)


def _rows(chart: Chart, series: Mapping[str, list[Point]]) -> Markup:
    names = list(dict.fromkeys(str(p.x) for several in series.values() for p in several))
    left = min(190, 14 + 7 * max(len(name) for name in names))
    values = [v for several in series.values() for p in several for v in _bounds(p)]
    axis = _axis(chart.y_scale, values, left, RIGHT)
    bottom = TOP + _ROW * len(names)
    marks = [x_axis(axis, chart.y, left=left, bottom=bottom)]
    styles = {name: style_of(index, name) for index, name in enumerate(series)}
    for row, name in enumerate(names):
        height = TOP + _ROW * row + _ROW / 2
        marks.append(
            Markup('<text class="left" x="{}" y="{:.1f}">{}</text>').format(
                left - 6, height + 4, name
            )
        )
        for one, several in series.items():
            for point in (p for p in several if p.x == name):
                low, high = (axis.place(v) for v in _bounds(point))
                whisker = f"M{low:.1f} {height:.1f}H{high:.1f}"
                marks.append(_point(axis.place(point.y), height, whisker, styles[one]))
    return svg(marks, f"{chart.title}. {_in_words(series)}", height=bottom + 46)


def _in_words(series: Mapping[str, list[Point]]) -> str:
    """The chart in words, for those who do not see it."""
    return " ".join(
        f"{name}: "
        + ", ".join(
            f"{p.x if isinstance(p.x, str) else number(p.x)}: {number(p.y)}" for p in points
        )
        + "."
        for name, points in series.items()
    )
