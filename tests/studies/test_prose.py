"""Numbers in running text that names a study, or stands on its page, are those of its kept result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KEPT = {path.stem: json.loads(path.read_text()) for path in (DOCS / "results").glob("*.json")}
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
MADE = {"papers.md", "deviations.md"}  # by `exhume study papers`, and compared there

OTHERS = {  # numbers of such paragraphs that are not the study's own
    "ensembler-cifar10.md": {"2.4", "63.8%"},  # a cost of the table above; an earlier run
    "ensembler-faces.md": {".760"},  # an earlier run
    "informed-gallery.md": {"+0.70", "+0.40"},  # another network
    "informed-zero-gradients.md": {"30.6%"},  # another |D-|
    "gradient.md": {"0.71", "0.59"},  # of gradient-defences
    "margin.md": {"2.6", "8.7"},  # rates that the code has fixed
    "margin-ordinary.md": {"44%"},  # an earlier run
    "numbers.md": {"0.0236", "0.0302", "0.0503"},  # of reconstructors, in the same paragraph
}
NUMBER = re.compile(r"(?<![\w.,/^-])[+-]?(?:\d*\.\d+%?|\d+%)(?!\w|\.\d)")
QUOTED = re.compile(r"```.*?```|<!-- (table|claims) .*?<!-- /\1 -->", re.DOTALL)
ASIDE = re.compile(r"\]\([^)]*\)|`[^`]*`|<!--.*?-->", re.DOTALL)


def numbers_in(value):
    if isinstance(value, str):
        for number, percent in re.findall(r"(\d*\.?\d+(?:e-?\d+)?)(%?)", value.replace(",", "")):
            yield float(number) / (100 if percent else 1)
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(each)
    elif isinstance(value, int | float):
        yield abs(float(value))


POOLS = {
    name: sorted({*numbers_in([kept[part] for part in ("metrics", "claims", "setting", "charts")])})
    for name, kept in KEPT.items()
}


def said_in(text, page=""):
    """Pairs of the studies that a paragraph speaks of and a number in it."""
    for paragraph in re.split(r"\n\s*\n", QUOTED.sub("", text)):
        named = re.findall(r"`(?:exhume study run )?([a-z0-9-]+)(?: [^`]*)?`", paragraph)
        studies = [name for name in KEPT if name in named or name == page]
        prose = "\n".join(line for line in paragraph.splitlines() if not line.startswith("|"))
        for number in NUMBER.findall(ASIDE.sub("", prose)) if studies else ():
            yield studies, number


def measured(studies, number):
    """Whether a metric, a claim or a setting of one of the studies reads so."""
    plain = number.lstrip("+-").rstrip("%")
    half = 0.5000001 * 10.0 ** -len(plain.partition(".")[2])
    times = 100 if number.endswith("%") else 1
    near = [abs(times * each - float(plain)) for name in studies for each in POOLS[name]]
    return min(near) <= half


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_beside_a_study_are_its_own(page):
    if page.name in MADE:
        return
    said = list(said_in(page.read_text(), page.stem))
    others = {number for studies, number in said if not measured(studies, number)} - {"95%"}
    assert others == OTHERS.get(page.name, set())


def test_a_number_that_is_not_the_study_s_is_noticed():
    right = KEPT["informed-epochs"]["metrics"]["steps_1.mse"]
    assert list(said_in(f"`informed-epochs`: {right:.4f} and 3.14159")) == [
        (["informed-epochs"], f"{right:.4f}"),
        (["informed-epochs"], "3.14159"),
    ]
    assert measured(["informed-epochs"], f"{right:.4f}")
    assert not measured(["informed-epochs"], "3.14159")
    assert list(said_in(f"No study: {right:.4f}")) == []
