"""The report's figures as text: inline SVG coloured by the page's style sheet, and PNG data URIs.

Pure functions. Text that comes from the user is escaped here, values that are not finite are left
out and zeros are drawn at the lower end of a logarithmic axis: no data makes a figure fail.

Shapes: c h w image, d numbers of a vector record.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping
from statistics import median

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor
from torch.nn import functional

from exhume.report.axes import (
    BOTTOM,
    LEFT,
    NOTHING,
    RIGHT,
    TOP,
    LogAxis,
    dots,
    finite,
    finite_pairs,
    legend,
    svg,
    x_axis,
    y_axis,
    y_tick,
)
from exhume.report.words import Number, number

__all__ = ["histogram", "img", "interval", "png_data_uri", "scatter", "strip"]


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


# Marks


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
