"""The page "Papers and us": made from what studies keep, never stale."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.core.results import Claim, StudyResult
from exhume.studies import STUDIES
from exhume.studies.papers import (
    FAILS,
    HOLDS,
    NOT_RUN,
    PART,
    UNDECIDED,
    Papers,
    Row,
    deviations_in,
    deviations_of,
    due,
    page_of,
    read_papers,
    summary_of,
    with_summary,
    write_papers,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def papers():
    return read_papers(DOCS)


def test_the_page_and_the_readme_are_what_the_results_say(papers):
    again = "run `exhume study papers`"
    assert (DOCS / "papers.md").read_text() == page_of(papers), again
    assert (DOCS / "deviations.md").read_text() == deviations_of(papers, DOCS), again
    assert summary_of(papers) in (ROOT / "README.md").read_text(), again


def test_every_row_names_a_study_and_a_page_that_are_there(papers):
    for row in papers.rows:
        assert row.study in STUDIES, row
        assert (DOCS / row.page).exists(), row
        typed = row.word or row.measured
        assert bool(typed) != (row.study in papers.results), row


def test_every_row_with_a_kept_result_finds_its_claims(papers):
    for row in papers.rows:
        if row.study in papers.results and row.scale == "cpu":
            assert papers.claims(row), row


def test_every_kept_claim_is_on_the_page(papers):
    page = page_of(papers)
    for result in papers.results.values():
        for claim in result.claims:
            assert str(claim.measured).replace("|", "\\|") in page, (result.study, claim.id)


ROW = Row("P", "Fig. 1", "s", "s.md", "small", ("a.*",), word=FAILS, measured="typed")


def made(*held, ids=("a.1", "a.2", "b")):
    claims = tuple(
        Claim(i, i, "it leaks", f"measured {i}", h) for i, h in zip(ids, held, strict=True)
    )
    result = StudyResult("s", "cpu", 0, "S", claims, {})
    return Papers({"P": "Title"}, (ROW,), {"s": result})


@pytest.mark.parametrize(
    ("held", "word"),
    [
        ((True, True, False), HOLDS),
        ((True, False, True), PART),
        ((True, None, False), PART),
        ((None, None, True), UNDECIDED),
        ((False, None, True), UNDECIDED),
        ((False, False, True), FAILS),
    ],
)
def test_the_word_is_that_of_the_claims_named(held, word):
    papers = made(*held)
    assert papers.word(ROW) == word
    assert "measured b" not in papers.measured(ROW)
    assert [claim.id for _, claims in papers.others() for claim in claims] == ["b"]


def test_without_a_kept_result_the_typed_words_are_marked():
    papers = Papers({"P": "Title"}, (ROW,), {})
    assert (papers.word(ROW), papers.measured(ROW)) == (FAILS, "typed")
    assert f"**{FAILS}** †" in page_of(papers)
    assert "†" not in page_of(made(True, True, True)).split("## P")[1]


def test_a_claim_that_the_result_lacks_was_not_run():
    assert made(True, True, True, ids=("b", "c", "d")).word(ROW) == NOT_RUN


def test_a_row_counts_only_claims_that_the_paper_makes():
    papers = made(True, False, True)
    (result,) = papers.results.values()
    ours = replace(result.claims[1], paper="")
    claims = (result.claims[0], ours, result.claims[2])
    papers = replace(papers, results={"s": replace(result, claims=claims)})
    assert papers.word(ROW) == HOLDS
    assert [claim.id for _, left in papers.others() for claim in left] == ["a.2", "b"]


def test_what_a_paper_says_of_a_row_stands_with_the_claims(papers):
    for row in papers.rows:
        assert row.says, row


def test_a_row_without_ids_takes_all_claims_of_its_study():
    row = replace(ROW, claims=())
    assert "3 claims hold" in made(True, True, True).measured(row)


def test_writing_into_another_place(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "papers.toml").write_text((DOCS / "papers.toml").read_text())
    (docs / "results").mkdir()
    for page in DOCS.glob("*.md"):
        (docs / page.name).write_text(page.read_text())
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(ExhumeError, match="README.md: the marks"):
        write_papers(docs)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    assert [path.name for path in write_papers(docs)] == [
        "papers.md",
        "deviations.md",
        "README.md",
    ]
    kept = {**json.loads((DOCS / "results" / "gradient-start.json").read_text()), "study": "x"}
    (docs / "results" / "x.json").write_text(json.dumps(kept))
    write_papers(docs)
    assert "exhume study run x --scale cpu" in (docs / "papers.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("item =", "itme ="), "unknown key 'itme'"),
        (('paper = "Balle22"', 'paper = "Nobody"'), "paper 'Nobody' is not one of Balle22"),
        (('word = "holds"', 'word = "maybe"'), "word 'maybe' is not one of holds"),
        (("[[row]]", "[[row"), "cannot be read"),
    ],
)
def test_a_wrong_data_file_is_refused(tmp_path, change, message):
    (tmp_path / "papers.toml").write_text((DOCS / "papers.toml").read_text().replace(*change))
    with pytest.raises(ExhumeError, match=message):
        read_papers(tmp_path)


def test_deviations_are_the_numbered_lists_below_their_headings():
    text = (
        "# A page\n\n1. not this\n\n**Deviations from the paper**\n\n1. One,\n   which goes on.\n2. Two.\n\n"
        "1. nor this\n## Deviations from it (more)\n1. Three.\nwords\n"
    )
    assert deviations_in(text) == ["One, which goes on.", "Two.", "Three."]


def test_the_summary_replaces_the_one_before(papers):
    once = with_summary((ROOT / "README.md").read_text(), papers)
    assert with_summary(once, papers) == once


def test_all_that_the_page_needs_the_cheapest_first(papers):
    """What was never kept takes a time that nobody knows."""
    took = due(papers)
    assert set(took) == {row.study for row in papers.rows}
    known = [seconds for seconds in took.values() if seconds is not None]
    assert known == sorted(known)
    assert list(took.values())[: len(known)] == known
    kept = {name for name, seconds in took.items() if seconds is not None}
    assert kept == set(took) & set(papers.results)


def test_the_plan_of_all_studies(monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ["study", "run", "all", "--scale", "long", "--dry-run"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    *rows, total = done.stdout.splitlines()
    assert "31 studies at scale long" in total
    counted = [row.split()[0] for row in rows if "nobody has counted" not in row]
    assert {"informed-mnist", "informed-epochs", "gradient-deep"} <= set(counted)
    assert [row.split()[0] for row in rows[: len(counted)]] == counted
