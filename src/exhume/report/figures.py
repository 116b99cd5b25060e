"""The report's figures as text: inline SVG coloured by the page's style sheet, and PNG data URIs.

Pure functions. Text that comes from the user is escaped here, values that are not finite are left out and
zeros are drawn at the lower end of a logarithmic axis: no data makes a figure fail.

A chart of a study is plain data, so that it lives in `result.json` and can be drawn again from there. Series
over numbers become lines; series over names become one row of points per name.

Shapes: c h w image, d numbers of a vector record.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor
from torch.nn import functional

from exhume.core.results import Chart, Point
from exhume.report.words import TONES, Number, number

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 46, 448, 12, 244
NOTHING = Markup('<p class="empty">There are no finite values to draw.</p>')
_STYLES = 6  # in the style sheet
_ROW = 20  # height of a named row

# Axes: where a value lies on the drawing, and its ticks and names


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
    """A list of series. entries: the style of its key, its name, what is said beside it, if anything."""
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


# Charts of a study: measured numbers with their intervals, and the paper's beside them


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
        name: [
            p for p in points if math.isfinite(p.y) and (isinstance(p.x, str) or math.isfinite(p.x))
        ]
        for name, points in chart.series.items()
    }
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return Markup(""), []
    named = isinstance(next(iter(kept.values()))[0].x, str)
    return (_rows(chart, kept) if named else _lines(chart, kept)), list(kept)


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


# Errors and shares


def histogram(
    series: Mapping[str, Iterable[Number]], *, label: str, x_label: str, bins: int = 36
) -> Markup:
    """Counts of several series over shared bins, on a logarithmic x axis, with a legend.

    The first series is filled, the second a line, the third dashed: readable without colour.
    """
    kept = {name: finite(values) for name, values in series.items()}
    kept = {name: values for name, values in kept.items() if values}
    if not kept:
        return NOTHING
    axis = LogAxis.around([v for values in kept.values() for v in values], LEFT, RIGHT)
    counts = {name: _counts(values, axis, bins) for name, values in kept.items()}
    top = _nice(max(max(c) for c in counts.values()))
    marks = [x_axis(axis, x_label)]
    marks += [y_tick(_height(v, top), v) for v in sorted({0, top // 2, top})]
    keys, words = [], []
    for place, (name, count) in enumerate(counts.items()):
        style, outline = f"s{place % 3}", _steps(count, top)
        marks.append(Markup('<path class="area {}" d="{}Z"/>').format(style, outline))
        marks.append(Markup('<path class="line {}" d="{}"/>').format(style, outline))
        middle = number(median(kept[name]))
        keys.append((style, name, f"median {middle}"))
        low, high = number(min(kept[name])), number(max(kept[name]))
        words.append(f"{name}: {len(kept[name])} values from {low} to {high}, median {middle}")
    return svg(marks, f"{label}. {'; '.join(words)}.") + legend(keys)


def _counts(values: list[float], axis: LogAxis, bins: int) -> list[int]:
    counts = [0] * bins
    for value in values:
        counts[min(int(axis.fraction(value) * bins), bins - 1)] += 1
    return counts


def _nice(count: int) -> int:
    """The least round even number, or 1, that is not below the count."""
    if count <= 10:
        return next(top for top in (1, 2, 4, 6, 8, 10) if top >= count)
    unit = int(10 ** (len(str(count - 1)) - 2))
    rounds = (10, 12, 14, 16, 20, 24, 30, 40, 50, 60, 80, 100)
    return unit * next(top for top in rounds if top * unit >= count)


def _height(count: int, top: int) -> float:
    return BOTTOM - (BOTTOM - TOP) * count / top


def _steps(counts: list[int], top: int) -> str:
    width = (RIGHT - LEFT) / len(counts)
    path = "".join(f"V{_height(c, top):.1f}h{width:.2f}" for c in counts)
    return f"M{LEFT} {BOTTOM}{path}V{BOTTOM}"


def scatter(
    x: Iterable[Number],
    y: Iterable[Number],
    *,
    label: str,
    x_label: str,
    y_label: str,
    most: int = 2000,
) -> Markup:
    """Points on two logarithmic axes of the same range, with the diagonal; below it y < x."""
    pairs = finite_pairs(x, y)
    if not pairs:
        return NOTHING
    below = sum(b < a for a, b in pairs)
    drawn = pairs[:: max(1, math.ceil(len(pairs) / most))]
    values = [v for pair in pairs for v in pair]
    across, up = LogAxis.around(values, LEFT, RIGHT), LogAxis.around(values, BOTTOM, TOP)
    marks = [
        Markup('<path class="won" d="M{0} {1}H{2}V{3}Z"/>').format(LEFT, BOTTOM, RIGHT, TOP),
        x_axis(across, x_label),
        y_axis(up, y_label),
        Markup('<path class="diagonal" d="M{0} {1}L{2} {3}"/>').format(LEFT, BOTTOM, RIGHT, TOP),
        dots([p for p in drawn if p[1] >= p[0]], across, up, "s1"),
        dots([p for p in drawn if p[1] < p[0]], across, up, "s0"),
    ]
    above = ("dot s1", "on or above it", len(pairs) - below)
    keys = legend([("dot s0", "below the diagonal", below), above])
    return svg(marks, f"{label}. {below} of {len(pairs)} points lie below the diagonal.") + keys


def interval(rows: Mapping[str, tuple[Number, Number, Number]], *, label: str) -> Markup:
    """A line per row, on a common scale from 0 to 1: (low, value, high) as range and point."""
    marks, words = [], []
    for place, (name, bounds) in enumerate(rows.items()):
        if not all(math.isfinite(b) for b in bounds):
            continue
        low, value, high = (4 + 192 * min(max(b, 0.0), 1.0) for b in bounds)
        marks.append(
            Markup(
                '<path class="rail" d="M4 {y}H196"/>'
                '<path class="range s{s}" d="M{low:.1f} {y}H{high:.1f}"/>'
                '<circle class="point s{s}" cx="{value:.1f}" cy="{y}" r="3.5"/>'
            ).format(y=8 + 14 * place, s=place % 3, low=low, high=high, value=value)
        )
        words.append(f"{name}: {bounds[1]:.1%}, interval {bounds[0]:.1%} to {bounds[2]:.1%}")
    if not marks:
        return Markup("")
    return Markup(
        '<svg class="interval" viewBox="0 0 200 {}" role="img" aria-label="{}">{}</svg>'
    ).format(14 * len(rows) + 2, f"{label}. {'; '.join(words)}.", Markup("").join(marks))


# Records


def png_data_uri(image: Tensor, *, side: int = 128) -> str:
    """(c, h, w) in [0, 1] as a PNG in a data URI; larger images are averaged down to `side` pixels.

    One channel is grey, three are RGB, any other number is averaged to grey.
    """
    pixels = torch.nan_to_num(image.detach().float().cpu(), nan=0.0).clamp(0, 1)
    if pixels.shape[0] not in (1, 3):
        pixels = pixels.mean(0, keepdim=True)
    height, width = pixels.shape[1:]
    if max(height, width) > side:
        shrink = side / max(height, width)
        size = (max(1, round(height * shrink)), max(1, round(width * shrink)))
        pixels = functional.interpolate(pixels[None], size=size, mode="area")[0]
    array = (pixels * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    data = io.BytesIO()
    picture.save(data, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def img(
    image: Tensor, alt: str, sizes: str = "", *, style: str = "pixels", side: int = 128
) -> Markup:
    """(c, h, w) as an element of the page. sizes: its attributes of width and height, as markup."""
    return Markup('<img class="{}" src="{}"{} alt="{}" decoding="async">').format(
        style, png_data_uri(image, side=side), sizes, alt
    )


def strip(record: Tensor, *, label: str, columns: int = 256) -> Markup:
    """(d,) in [0, 1] as a strip of bars; longer records are averaged down to `columns` bars."""
    values = torch.nan_to_num(record.detach().float().cpu(), nan=0.0).clamp(0, 1)
    if len(values) > columns:
        values = functional.adaptive_avg_pool1d(values[None], columns)[0]
    bars = "".join(f"V{32 - 31 * v:.4g}h1" for v in values.tolist())
    return Markup(
        '<svg class="strip" viewBox="0 0 {0} 32" preserveAspectRatio="none" role="img" '
        'aria-label="{1}"><path d="M0 32{2}V32Z"/></svg>'
    ).format(max(1, len(values)), label, bars)
