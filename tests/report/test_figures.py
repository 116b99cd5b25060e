from __future__ import annotations

import base64
import io
import math
import re
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from exhume.core.contract import ExhumeError
from exhume.core.results import Chart, Point
from exhume.core.typed_json import from_json, to_json
from exhume.report.figures import draw_chart, histogram, interval, png_data_uri, scatter, strip
from exhume.report.sheet import chart_file

NASTY = '"><script>alert(1)</script>'
AWKWARD = {
    "empty": [],
    "one": [0.3],
    "constant": [0.5] * 7,
    "zeros": [0.0, 0.0],
    "zero and one": [0.0, 1.0],
    "nan and inf": [math.nan, math.inf, -math.inf, 0.1, 0.2],
    "only nan": [math.nan, math.nan],
    "negative": [-1.0, 0.2],
    "many decades": [1e-300, 1e-14, 1.0, 1e20],
    "smallest": [5e-324, 1e308],
}


def parsed(markup: str) -> ElementTree.Element:
    root = ElementTree.fromstring(f"<div>{markup}</div>")
    for path in root.iter("path"):
        assert not re.search("nan|inf", path.get("d", ""))
    return root


@pytest.mark.parametrize("values", AWKWARD.values(), ids=AWKWARD.keys())
def test_figures_survive_any_numbers(values: list[float]) -> None:
    parsed(histogram({"a": values, "b": [0.1, 0.2], "c": values}, label="l", x_label="x"))
    parsed(histogram({"a": values}, label="l", x_label="x"))
    parsed(scatter(values, values, label="l", x_label="x", y_label="y"))
    parsed(interval({"a": (0.1, 0.2, 0.3), "b": (0.0, math.nan, 1.0)}, label="l"))


def test_a_histogram_draws_every_finite_value_once() -> None:
    values = [0.001, 0.01, 0.01, 0.1, math.nan, 0.0]
    root = parsed(histogram({"a": values}, label="l", x_label="x", bins=9))
    line = next(e for e in root.iter("path") if e.get("class") == "line s0")
    heights = [float(step.split("h")[0]) for step in line.get("d", "").split("V")[1:-1]]
    assert [round(2 * (244 - h) / (244 - 12)) for h in heights] == [2, 0, 0, 0, 2, 0, 0, 0, 1]


def test_a_scatter_says_how_many_points_lie_below_the_diagonal() -> None:
    root = parsed(scatter([1, 1, 1], [0.5, 1, 2], label="l", x_label="x", y_label="y"))
    assert "1 of 3 points" in next(root.iter("svg")).get("aria-label", "")


def test_a_scatter_of_many_points_draws_a_part_and_counts_all() -> None:
    root = parsed(scatter([1.0] * 5000, [0.5] * 5000, label="l", x_label="x", y_label="y"))
    dots = next(e for e in root.iter("path") if e.get("class") == "dots s0")
    assert dots.get("d", "").count("M") <= 2000
    assert "5000 of 5000" in next(root.iter("svg")).get("aria-label", "")


def test_text_in_figures_is_escaped() -> None:
    figures = (
        histogram({NASTY: [0.1, 0.2]}, label=NASTY, x_label=NASTY),
        scatter([0.1], [0.2], label=NASTY, x_label=NASTY, y_label=NASTY),
        interval({NASTY: (0, 0.5, 1)}, label=NASTY),
        strip(torch.rand(4), label=NASTY),
    )
    for figure in figures:
        assert "<script" not in figure
        parsed(figure)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (5, "L")])
def test_a_png_holds_the_pixels(channels: int, mode: str) -> None:
    image = torch.rand(channels, 5, 4)
    head, data = png_data_uri(image).split(",")
    assert head == "data:image/png;base64"
    back = Image.open(io.BytesIO(base64.b64decode(data)))
    assert (back.size, back.mode) == ((4, 5), mode)
    if channels == 1:
        assert back.getpixel((2, 3)) == round(255 * float(image[0, 3, 2]))


def test_a_png_is_bounded_in_size_and_takes_values_that_are_not_finite() -> None:
    image = torch.full((3, 300, 150), math.nan)
    image[:, 0] = math.inf
    data = png_data_uri(image, side=60).split(",")[1]
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (30, 60)


def test_a_strip_has_a_bar_per_number_up_to_its_bound() -> None:
    assert strip(torch.rand(7), label="l").count("h1") == 7
    assert strip(torch.rand(1000), label="l", columns=64).count("h1") == 64


LINES = Chart(
    "t", "x", "y", {"ours": [Point(1, 0.5, 0.4, 0.6), Point(10, 0.2)], "paper": [Point(5, 0.3)]}
)
ROWS = Chart("t", "x", "y", {"ours": [Point("relu", 0.5, 0.4, 0.7)], "<b>": [Point("relu", 0.2)]})


def parsed_chart(markup: str) -> ElementTree.Element:
    assert "nan" not in markup
    return ElementTree.fromstring(f"<div>{markup}</div>")


@pytest.mark.parametrize("chart", [LINES, ROWS], ids=["lines", "rows"])
def test_a_chart_survives_the_run_folder_and_is_drawn(chart):
    again = from_json(Chart, to_json(chart), "result.json")
    assert to_json(again) == to_json(chart)
    root = parsed_chart(draw_chart(again))
    points = sum(len(several) for several in chart.series.values())
    assert len(root.findall(".//circle")) == points
    assert len(root.findall(".//li")) == len(chart.series)


@pytest.mark.parametrize("scale", ["log", "linear"])
@pytest.mark.parametrize(
    "values", [[0.0], [-1.0, 1.0], [3.0, 3.0], [1e-9, 1e9], [math.nan, 2.0, math.inf]]
)
def test_charts_survive_any_numbers(scale, values):
    points = [Point(v, v, v, v) for v in values]
    parsed_chart(draw_chart(Chart("t", "x", "y", {"a": points}, x_scale=scale, y_scale=scale)))


def test_larger_values_lie_higher_and_further_right():
    dots = parsed_chart(draw_chart(LINES)).findall(".//circle")
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
    circles = parsed_chart(draw_chart(chart)).findall(".//circle")
    assert [c.get("class") for c in circles] == ["point unknown", "point leak"]
    text = chart_file(chart)
    assert 'class="point leak" cx="14"' in text
    assert ".point.leak { fill: #a8201a" in text
