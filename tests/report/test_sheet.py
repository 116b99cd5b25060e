from __future__ import annotations

import io
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from exhume.contract import ExhumeError
from exhume.report.chart_file import chart_file
from exhume.report.sheet import contact_sheet, write_sheets
from exhume.results import Chart, Point


def test_records_stand_above_what_came_back():
    white, black = torch.ones(3, 1, 4, 6), torch.zeros(3, 1, 4, 6)
    evidence = {"targets": white, "reconstructions": black, "labels": torch.arange(3)}
    drawn = Image.open(io.BytesIO(contact_sheet(evidence, ("a", "b", "c")))).convert("RGB")
    assert drawn.width == 3 * (12 + 8)
    for cell in range(3):
        left = cell * 20
        assert drawn.getpixel((left + 6, 4)) == (255, 255, 255)
        assert drawn.getpixel((left + 6, 8 + 2 + 4)) == (0, 0, 0)


def test_vectors_are_no_pictures():
    vectors = torch.zeros(3, 5)
    assert contact_sheet({"targets": vectors, "reconstructions": vectors}, ()) is None
    assert contact_sheet({"targets": torch.zeros(1, 1, 2, 2)}, ()) is None


def test_only_finished_studies_are_drawn(tmp_path):
    with pytest.raises(ExhumeError, match="no finished run"):
        write_sheets(tmp_path, tmp_path / "out")


def test_charts_are_files_of_their_own():
    points = [Point(1, 0.5, 0.4, 0.6), Point(10, 0.25)]
    series = {f"series <{i}>": points for i in range(7)}
    text = chart_file(Chart("A title & more", "x", "y", series, x_scale="log"))
    root = ElementTree.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title").text == "A title & more"
    assert "series <6>" in "".join(root.itertext())
    assert 'class="point s0 again"' in text
    assert root.get("aria-label").startswith("A title")
    assert chart_file(Chart("Nothing", "x", "y", {"a": [Point(1, math.nan)]})) == ""


def test_a_kept_result_has_charts_alone(tmp_path):
    kept = Path(__file__).parents[2] / "docs" / "results" / "gradient-start.json"
    (drawn,) = write_sheets(kept, tmp_path)
    assert drawn.name == "gradient-start-chart1.svg"
