from __future__ import annotations

import io
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from report_runs import audit, evidence

from exhume.core.contract import ExhumeError
from exhume.core.results import Chart, Point
from exhume.report.evidence import TextGallery, TextRow, Word
from exhume.report.sheet import chart_file, contact_sheet, text_file, write_sheets


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


def _cells(picture):
    """Mean brightness of the private record of each of two cells."""
    grey = torch.tensor(list(picture.convert("L").getdata())).reshape(picture.height, -1) / 255
    return [float(grey[:12, left : left + 12].mean()) for left in (0, 20)]


def test_an_audit_is_drawn_only_if_its_records_are_public(make_run, tmp_path):
    made = evidence(5)
    run = make_run(audit(classes=["a", "b", "c"]), made)
    with pytest.raises(ExhumeError, match="holds private records; --public draws them"):
        write_sheets(run, tmp_path / "out")
    (drawn,) = write_sheets(run, tmp_path / "out", public=True, most=2)
    assert drawn.name == "run-closed-form.png"
    picture = Image.open(drawn)
    assert picture.width == 2 * (12 + 8)  # two records
    assert picture.height == 3 * 14 - 2 + 14 + 8  # each above what came back and the nearest held
    best, worst = (cell for cell in _cells(picture))
    assert best == pytest.approx(float(made["targets"][made["mse"].argmin()].mean()), abs=0.02)
    assert worst == pytest.approx(float(made["targets"][made["mse"].argmax()].mean()), abs=0.02)
    with pytest.raises(ExhumeError, match="no attack 'other'; it has closed-form"):
        write_sheets(run, tmp_path / "out", public=True, attack="other")


def test_texts_stand_above_what_came_back_word_by_word():
    words = [Word("they", True), Word("<b>", False)]
    found = (Word("they", True), Word("&", False))
    rows = (TextRow(tuple(words), found, 0.5, ""), TextRow(tuple(words), None, 0.0, ""))
    long = TextRow(tuple(Word("word" * 9, True) for _ in range(9)), (), 0.0, "")
    texts = TextGallery(
        (*rows, long), 3, ordered=True, truth=True, lists=False, listed=(), unlisted=0
    )
    root = ElementTree.fromstring(text_file(texts, 1))
    assert root.get("aria-label") == "A text above what came back of it: 1 of 2 words are right."
    space = "{http://www.w3.org/2000/svg}"
    assert [t.text for t in root.iter(f"{space}text") if t.get("class") == "wrong"] == ["&"]
    assert len([r for r in root.iter(f"{space}rect") if r.get("class") == "right"]) == 2
    wide = ElementTree.fromstring(text_file(texts, 3))
    assert all(float(t.get("x")) < 760 for t in wide.iter(f"{space}text"))
    assert "(nothing)" in text_file(texts, 3)  # a text that did not come back is shown, too
    listed = TextGallery(
        rows, 2, ordered=True, truth=True, lists=True, listed=("they",), unlisted=0
    )
    assert text_file(listed, 9) == ""
