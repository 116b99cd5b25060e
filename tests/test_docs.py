"""The pages: every link leads somewhere, every attack and defence has one, and the code in them runs."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import exhume
from exhume.core.results import read_result
from exhume.report.sheet import chart_file, write_sheets
from exhume.studies import STUDIES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / "examples").glob("*/README.md")])
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "_docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described_classes():
    """Attacks and defences: classes that say what they see."""
    for room in ("attacks", "defences"):
        for path in sorted((ROOT / "src" / "exhume" / room).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and "Sees:" in (ast.get_docstring(node) or ""):
                    yield str(path.relative_to(ROOT / "src" / "exhume")), node.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in LINK.findall(text):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_pictures_are_there_and_have_words(page):
    for words, target in IMAGE.findall(page.read_text()):
        assert (page.parent / target).exists(), target
        assert len(words) > 20, f"{target}: say what it shows"


@pytest.mark.parametrize("kept", sorted((DOCS / "results").glob("*.json")), ids=lambda p: p.stem)
def test_every_kept_result_has_its_charts_on_a_page(kept, tmp_path):
    """`exhume study figures docs/results/NAME.json` draws them; a page shows them."""
    result = read_result(kept)
    if not any(chart_file(chart) for chart in result.charts):
        return
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    for drawn in write_sheets(kept, tmp_path):
        assert (DOCS / "figures" / drawn.name).read_text() == drawn.read_text(), drawn.name
        assert f"(figures/{drawn.name})" in text, f"no page shows {drawn.name}"


@pytest.fixture(scope="module")
def origins():
    spec = importlib.util.spec_from_file_location("origins", DOCS / "_origins.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_with_a_study_says_where_its_numbers_come_from(origins):
    listed = origins.listed()
    for page in DOCS.glob("*.md"):
        kept, typed = origins.studies_of(page.name)
        note = origins.noted(page.name)
        assert all(f"(results/{study}.json)" in note for study in kept)
        assert all(f"`{study}`" in note for study in typed)
        assert (f"exhume {origins.version()}" in note) == bool(typed)
        assert (f"]({page.name})" in listed) == bool(note)
    assert origins.studies_of("update-networks.md") == (["update-networks"], [])
    assert origins.studies_of("limits.md") == ([], [])
    for page in DOCS.glob("*.md"):
        for studies in origins.studies_of(page.name):
            assert set(studies) <= set(STUDIES), page.name


def test_every_page_with_a_kept_result_shows_its_figure(origins):
    """Where the study has a chart; `exhume study figures docs/results/NAME.json` draws it."""
    for page in DOCS.glob("*.md"):
        for study in origins.studies_of(page.name)[0]:
            if any(chart_file(c) for c in read_result(DOCS / "results" / f"{study}.json").charts):
                assert f"(figures/{study}-chart" in page.read_text(), page.name


def test_the_reference_has_every_public_name(hook):
    text = hook.rendered((DOCS / "api.md").read_text())
    assert ":::" not in text
    for name in set(exhume.__all__) - {"__version__", "Audit"}:
        assert f"{name}(" in text
    assert "from exhume.auditing.findings import Audit" in text
    assert "KEYS" not in text


@pytest.mark.parametrize(("file", "name"), list(described_classes()))
def test_every_attack_and_defence_has_a_page(file, name, hook):
    line = f"::: {file} {name}"
    pages = [page for page in DOCS.rglob("*.md") if line in page.read_text().splitlines()]
    assert len(pages) == 1, f"write docs/attacks/… or docs/defences/… with the line {line!r}"
    text = hook.rendered(pages[0].read_text())
    assert ":::" not in text
    for part in ("Sees", "Assumes", "Guarantees", "Reference"):
        assert f"| {part} | " in text
    named = f"{pages[0].parent.name}/{pages[0].name}"
    assert named in (ROOT / "mkdocs.yml").read_text()


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)
    there = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    examples = [f"examples/{p.parent.name}.md" for p in PAGES if p.name == "README.md"]
    notebooks = [f"examples/{p.stem}.md" for p in (ROOT / "examples").glob("*/*.ipynb")]
    assert sorted(listed) == sorted([*there, *examples, *notebooks])


def test_what_a_docstring_becomes(hook):
    text = "Do it\nat once.\n\nSees: a | b,\nand c.\nGuarantees: nothing.\n\nMore words.\n"
    summary, parts, rest = hook.sections(text)
    assert summary == "Do it at once."
    assert parts == {"Sees": "a \\| b, and c.", "Guarantees": "nothing."}
    assert rest == "More words."
    table = hook.described("attacks/margin/stationarity.py", "FirstLayer")
    assert "| `restarts` | `6` |" in table
    for family in (DOCS / "attacks").glob("*.md"):  # a constant's name says nothing
        assert not re.findall(r"\| `_?[A-Z][A-Z_]+` \|", hook.rendered(family.read_text()))
    with pytest.raises(ValueError, match="has no class Nothing"):
        hook.described("attacks/baseline.py", "Nothing")


def test_the_attack_that_the_page_teaches_to_write(capsys):
    blocks = re.findall(
        r"```python\n(.*?)```", (DOCS / "write-your-own-attack.md").read_text(), re.DOTALL
    )
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "page", "exec", dont_inherit=True), names)
    assert "of 20 records" in capsys.readouterr().out
