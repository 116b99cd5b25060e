from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from exhume.core.contract import ExhumeError
from exhume.core.typed_json import from_json, to_json
from exhume.report.chart_file import chart_file
from exhume.report.charts import Chart, Point, draw_chart

LINES = Chart(
    "t", "x", "y", {"ours": [Point(1, 0.5, 0.4, 0.6), Point(10, 0.2)], "paper": [Point(5, 0.3)]}
)
ROWS = Chart("t", "x", "y", {"ours": [Point("relu", 0.5, 0.4, 0.7)], "<b>": [Point("relu", 0.2)]})


def parsed(markup: str) -> ElementTree.Element:
    assert "nan" not in markup
    return ElementTree.fromstring(f"<div>{markup}</div>")


@pytest.mark.parametrize("chart", [LINES, ROWS], ids=["lines", "rows"])
def test_a_chart_survives_the_run_folder_and_is_drawn(chart):
    again = from_json(Chart, to_json(chart), "result.json")
    assert to_json(again) == to_json(chart)
    root = parsed(draw_chart(again))
    points = sum(len(several) for several in chart.series.values())
    assert len(root.findall(".//circle")) == points
    assert len(root.findall(".//li")) == len(chart.series)


@pytest.mark.parametrize("scale", ["log", "linear"])
@pytest.mark.parametrize(
    "values", [[0.0], [-1.0, 1.0], [3.0, 3.0], [1e-9, 1e9], [math.nan, 2.0, math.inf]]
)
def test_charts_survive_any_numbers(scale, values):
    points = [Point(v, v, v, v) for v in values]
    parsed(draw_chart(Chart("t", "x", "y", {"a": points}, x_scale=scale, y_scale=scale)))


def test_larger_values_lie_higher_and_further_right():
    dots = parsed(draw_chart(LINES)).findall(".//circle")
    (x1, y1), (x10, y10) = ((float(d.get("cx")), float(d.get("cy"))) for d in dots[:2])
    assert x1 < x10
    assert y1 < y10  # SVG counts downwards; 0.5 lies above 0.2


def test_nothing_to_draw_says_so():
    assert "no finite values" in draw_chart(Chart("t", "x", "y", {"a": [Point(1, math.nan)]}))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({}, ".title is missing"),
        ({"series": {"a": [{"x": 1}]}}, r".series.a\[0\].y is missing"),
        (
            {"series": {"a": [{"x": 1, "y": "2"}]}},
            r".y must be a whole number or a number, not str",
        ),
        ({"series": {"a": [{"x": 1, "y": 2}, {"x": "b", "y": 2}]}}, ": x mixes names and numbers"),
        ({"x_scale": "cubic"}, ".x_scale: 'cubic' is not one of log, linear"),
    ],
)
def test_a_damaged_chart_is_named(broken, why):
    whole = {**to_json(LINES), **broken} if broken else {}
    with pytest.raises(ExhumeError, match=rf"result.json: charts\[0\].*{why}"):
        from_json(Chart, whole, "result.json: charts[0]")


def test_a_chart_comes_back():
    assert to_json(from_json(Chart, to_json(LINES), "chart")) == to_json(LINES)


def test_a_verdict_has_its_own_colour_in_every_chart():
    words = ("not audited", "leaks")
    chart = Chart("t", "system", "share", {w: [Point("one", 0.5)] for w in words})
    circles = parsed(draw_chart(chart)).findall(".//circle")
    assert [c.get("class") for c in circles] == ["point unknown", "point leak"]
    text = chart_file(chart)
    assert 'class="point leak" cx="14"' in text
    assert ".point.leak { fill: #a8201a" in text
