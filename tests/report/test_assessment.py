"""Two pages for an impact assessment: what they answer, what they leave out, how they print."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

import pytest
from report_runs import NASTY, MakeRun, attack, audit, evidence, study

from exhume.core.contract import ExhumeError
from exhume.report.assessment import write_assessment
from exhume.report.meaning import meaning
from exhume.report.page import redacted_run

QUESTIONS = (
    "The finding",
    "Likelihood of extracting personal data directly from the release",
    "For whom most",
    "Likelihood of obtaining personal data through queries",
    "Who is assumed to have access, and what they know",
    "What was done about it",
    "How long this is valid",
    "How to repeat it",
    "References",
)
PLANNED = {
    "id": "closed-form",
    "name": "Closed-form reconstructor",
    "release": "",
    "threat": "sees the weights | knows all records but one",
    "estimated_seconds": 1.0,
    "run": True,
}


def written(make_run: MakeRun, **changes) -> dict[str, str]:
    leak = {"successes": 86, "trials": 100, "low": 0.78, "high": 0.92}
    environment = {"exhume": "0.1.0", "date": "2026-01-02", "hostname": "janes-laptop"}
    result = audit(leak=leak, plan=[PLANNED], **changes)
    run = make_run(result, evidence(9), environment=environment)
    paths = write_assessment(run)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def test_it_answers_the_questions_in_both_forms(make_run: MakeRun) -> None:
    files = written(make_run)
    for question in QUESTIONS:
        assert f"## {question}\n" in files["assessment.md"]
        assert f"<h2>{question}</h2>" in files["assessment.html"]
    for text in (files["assessment.md"], files["assessment.html"]):
        for words in ("86 of 100 (78% to 92%)", "run on 2026-01-02", "Not covered.", "28/2024"):
            assert words in text
        assert "janes-laptop" not in text
        assert "/home/jane" not in text
    assert r"sees the weights \| knows" in files["assessment.md"]
    assert "**leaks**" in files["model-card.md"]
    assert "| records brought back | 86 of 100 (78% to 92%) |" in files["model-card.md"]


def test_texts_of_others_stay_texts(make_run: MakeRun) -> None:
    verdict = {"word": "leaks", "sentence": NASTY, "detail": ""}
    files = written(make_run, verdict=verdict, attacks=[attack(name=NASTY)])
    assert not any("<img" in text for text in files.values())


@pytest.mark.parametrize("word", ["leaks", "at risk", "no leak found", "not audited"])
def test_no_word_is_called_safe(make_run: MakeRun, word: str) -> None:
    verdict = {"word": word, "sentence": "A sentence.", "detail": ""}
    run = make_run(audit(verdict=verdict), evidence(9))
    said = " ".join(meaning(redacted_run(run)[0]))
    assert said
    assert not re.search(r"\b(is|are) (safe|anonymous|secure)\b", said)


def test_a_bound_speaks_and_a_vacuous_one_is_called_so(make_run: MakeRun) -> None:
    row = {
        "attack": "Likeliest word",
        "successes": 1404,
        "trials": 2000,
        "kappa": 0.1,
        "alarm": False,
    }
    row |= {"game": "the input named among 10", "low": 0.68, "high": 0.72, "rate": 0.702}
    limits = {"alarm": "", "notes": [], "rows": [row | {"bound": 0.75}, row | {"bound": 1.0}]}
    files = written(
        make_run,
        attacks=[attack(limits=limits)],
        verdict={"word": "not audited", "sentence": "Nothing worked.", "detail": ""},
    )
    said = "at most 75% success at the input named among 10; Likeliest word reached 70.2%"
    for name in ("assessment.md", "assessment.html", "model-card.md"):
        assert said in files[name]
        assert "is vacuous: it allows 100%" in files[name]


def test_a_study_has_no_assessment(make_run: MakeRun) -> None:
    with pytest.raises(ExhumeError, match="an assessment is made of an audit"):
        write_assessment(make_run(study()))


@pytest.mark.browser
def test_it_prints_on_two_pages(make_run: MakeRun, browser, tmp_path: Path) -> None:
    """With more attacks than the table lists, and a fix for each."""
    several = [attack(id=f"a{i}", name=f"An attack with a name {i}") for i in range(14)]
    fix = {"id": "f", "release": "", "words": "noise of 1% of the size", "short": "noise"}
    fix |= {"guarantee": "none", "outcome": "12 of 20 recovered, accuracy 91%", "tried": True}
    written(make_run, attacks=several, fixes=[fix] * 4)
    page = browser.new_page()
    page.goto((tmp_path / "run" / "assessment.html").as_uri())
    page.pdf(path=tmp_path / "a.pdf", prefer_css_page_size=True)
    shown = subprocess.run(
        ["pdfinfo", str(tmp_path / "a.pdf")], capture_output=True, text=True, check=True
    )
    assert re.search(r"^Pages: +2$", shown.stdout, re.MULTILINE), shown.stdout
