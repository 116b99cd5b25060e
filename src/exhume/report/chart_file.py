"""A chart of a study as a small SVG file for a page of documentation, light and dark, with its alt text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from markupsafe import escape

from exhume.core.results import Chart
from exhume.report.axes import WIDTH
from exhume.report.charts import draw_svg, style_of
from exhume.report.words import TONES

__all__ = ["chart_file"]

_LINE = 17  # height of a line of the legend
_LIGHT = ("#0072b2", "#b85a00", "#5f6670", "#00795a", "#a33a7d", "#7a6a00")
_LIGHT_TONES = {"leak": "#a8201a", "risk": "#8a4b00", "clear": "#1f4e8c", "unknown": "#4b5563"}
_DARK_TONES = {"leak": "#ff9d92", "risk": "#f2b366", "clear": "#9cc3f5", "unknown": "#b8bec8"}
_DARK = ("#56b4e9", "#f0a04b", "#a7adb8", "#3ac49a", "#e08cc4", "#d8c84a")
_STYLE = """
text { fill: #5a606b; font: 12px system-ui, sans-serif; text-anchor: middle; }
.left { text-anchor: end; } .start { text-anchor: start; } .name { fill: #1e2126; }
.paper { fill: #fff; } path { fill: none; } .axis { stroke: #5a606b; } .grid { stroke: #e1ded7; }
.line { stroke-width: 2; } .whisker { stroke-width: 2; opacity: .5; }
.line.again { stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
  text { fill: #a3a8b2; } .name { fill: #e8e6e1; } .paper { fill: #15171b; }
  .axis { stroke: #a3a8b2; } .grid { stroke: #32363d; }
}
"""


def chart_file(chart: Chart) -> str:
    """The whole file; "" where there is nothing to draw."""
    drawn, names = draw_svg(chart)
    if not names:
        return ""
    found = re.fullmatch(r'<svg class="chart" viewBox="0 0 \d+ (\d+)" (.*?)>(.*)</svg>', str(drawn))
    assert found is not None  # as `axes.svg` writes it
    height, label, inside = int(found[1]), found[2], found[3]
    light, dark = _colours(_LIGHT), _colours(_DARK)
    if set(names) & set(TONES):
        light, dark = light + _tones(_LIGHT_TONES), dark + _tones(_DARK_TONES)
    style = f"{_STYLE}{light}@media (prefers-color-scheme: dark) {{ {dark} }}"
    size = f'width="{WIDTH}" height="{height + _LINE * len(names) + 4}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>',
            f"<title>{escape(chart.title)}</title><style>{style}</style>",
            f'<rect class="paper" {size}/>',
            inside,
            *(_row(place, height + _LINE * place, name) for place, name in enumerate(names)),
            "</svg>\n",
        ]
    )


def _row(place: int, height: int, name: str) -> str:
    """One line of the legend."""
    dot = f'<circle class="point {style_of(place, name)}" cx="14" cy="{height}" r="5"/>'
    return f'{dot}<text class="start name" x="26" y="{height + 4}">{escape(name)}</text>'


def _tones(colours: Mapping[str, str]) -> str:
    return "".join(
        f".{tone} {{ stroke: {colour}; }} .point.{tone} {{ fill: {colour}; stroke: none; }}\n"
        for tone, colour in colours.items()
    )


def _colours(colours: tuple[str, ...]) -> str:
    return "".join(
        f".s{i} {{ stroke: {colour}; }} .point.s{i} {{ fill: {colour}; stroke: none; }}\n"
        f".point.s{i}.again {{ fill: none; stroke: {colour}; stroke-width: 2; }}\n"
        for i, colour in enumerate(colours)
    )
