"""Tables of pages: what a template asks for is what the kept result has."""

from __future__ import annotations

from pathlib import Path

import pytest

from exhume.core.contract import ExhumeError
from exhume.studies.tables import filled, write_tables

DOCS = Path(__file__).parents[2] / "docs"
TEMPLATE = """# A page

<!-- table gradient-noise
| noise | [a link](x.md) |
|---|---|
| [none; 0.01=**a little**] | {relu.m16384.b4.*.error:.3f} |
| all | {relu.m16384.b4.none.counted:.0%} |
-->
old
<!-- /table -->

The end.
"""


def test_the_pages_are_what_their_results_say():
    """`exhume study tables` fills them."""
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        assert filled(text, DOCS, page.name) == text, page.name


def test_a_row_for_each_name():
    new = filled(TEMPLATE.replace("; 0.01=**a little**", "=**nothing**"), DOCS, "page.md")
    assert "| **nothing** | 0.110 |\n| all | 100% |\n\n<!-- /table -->\n\nThe end." in new
    assert "old" not in new
    assert "| [a link](x.md) |" in new
    assert filled(new, DOCS, "page.md") == new


def test_a_number_in_running_text():
    mark = "<!-- informed-epochs {steps_1.mse:.4f} -->"
    text = f"An error of 0.5{mark}, and 0.5 elsewhere."
    assert filled(text, DOCS, "page.md") == f"An error of 0.0109{mark}, and 0.5 elsewhere."


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("none;", "nothing;", "asks for relu.m16384.b4.nothing.error, which the result does not"),
        (":.3f", ":.3y", "'.3y' is no format of a number"),
        ("gradient-noise", "gradient-peace", "exhume study run gradient-peace --keep"),
    ],
)
def test_what_cannot_be_filled_is_said(old, new, why):
    with pytest.raises(ExhumeError, match=why):
        filled(TEMPLATE.replace(old, new), DOCS, "page.md")


def test_only_pages_that_change_are_written(tmp_path):
    (tmp_path / "results").symlink_to(DOCS / "results")
    page, plain = tmp_path / "page.md", tmp_path / "plain.md"
    page.write_text(TEMPLATE.replace("; 0.01=**a little**", ""))
    plain.write_text("no table")
    assert write_tables(tmp_path) == [page]
    assert "| none | 0.110 |" in page.read_text()
    assert write_tables(tmp_path) == []


def test_claims_of_a_study():
    new = filled("<!-- claims split-points -->\n<!-- /claims -->", DOCS, "page.md")
    assert "| claim | paper | measured | |" in new
    assert "| VGG-16: SSIM falls with the first split's depth | the deeper the first split" in new
    assert "| **undecided** |" in new
    assert new.count("| **undecided** |") + new.count("| holds |") == 6
