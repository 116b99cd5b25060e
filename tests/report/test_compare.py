from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from exhume.contract import ExhumeError
from exhume.report.compare import compare, difference
from exhume.report.junit import write_junit


def run(path: Path, successes: int, targets: int, **more) -> Path:
    path.mkdir()
    attack = {
        "id": "a",
        "name": "An attack",
        "verdict": more.pop("verdict", "leaks"),
        "status": {"outcome": more.pop("outcome", "converged"), "reason": "because"},
        "metrics": {"success": successes / targets, "targets": targets, "duplicates": 0},
    }
    result = {
        "schema": 1,
        "kind": "audit",
        "attacks": [attack],
        "verdict": {"word": "leaks", "sentence": "It leaks."},
        "plan": [{"name": "Another", "run": False, "why": "no time\x00"}],
        **more,
    }
    (path / "result.json").write_text(json.dumps(result))
    return path


@pytest.mark.parametrize(
    ("one", "other", "word"),
    [(90, 10, "better"), (10, 90, "worse"), (50, 52, "within noise"), (0, 0, "within noise")],
)
def test_words(tmp_path, one, other, word):
    first, second = run(tmp_path / "a", one, 100), run(tmp_path / "b", other, 100)
    (change,) = compare(first, second)
    assert change.word == word
    assert change.sentence().startswith(f"{word}: An attack: {one}.0% -> {other}.0% (")


def test_few_targets_tell_nothing(tmp_path):
    (change,) = compare(run(tmp_path / "a", 1, 2), run(tmp_path / "b", 2, 2))
    assert change.word == "within noise"


def test_the_interval_holds_the_truth_often_enough():
    """20,000 pairs of runs of known rates: it misses in at most 5% of them."""
    import numpy as np

    draw = np.random.default_rng(0)
    missed = 0
    pairs = {}
    for a, b in zip(draw.binomial(40, 0.3, 20_000), draw.binomial(60, 0.5, 20_000), strict=True):
        if (a, b) not in pairs:
            pairs[a, b] = difference((int(a), 40), (int(b), 60))
        low, high = pairs[a, b]
        missed += not low <= 0.2 <= high
    assert missed / 20_000 < 0.05


def test_nothing_in_common_is_said(tmp_path):
    first, second = run(tmp_path / "a", 1, 2), run(tmp_path / "b", 2, 2, attacks=[])
    with pytest.raises(ExhumeError, match="no attack was run and scored in both"):
        compare(first, second)
    study = run(tmp_path / "c", 1, 2, kind="study")
    with pytest.raises(ExhumeError, match="the run of a study"):
        compare(first, study)
    with pytest.raises(ExhumeError, match="no finished run"):
        compare(first, tmp_path / "nothing")


def cases(path: Path) -> dict[str, list[str]]:
    suite = ET.parse(path).getroot()
    return {case.get("name"): [child.tag for child in case] for case in suite}


def test_junit(tmp_path):
    folder = run(tmp_path / "a", 9, 10)
    write_junit(folder, tmp_path / "j.xml")
    assert cases(tmp_path / "j.xml") == {"An attack": ["failure"], "Another": ["skipped"]}
    suite = ET.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    write_junit(folder, tmp_path / "j.xml", fail_over=0.95)
    assert cases(tmp_path / "j.xml")["An attack"] == []


def test_junit_of_what_was_not_audited_is_an_error(tmp_path):
    verdict = {"word": "not audited", "sentence": "Not audited: nothing applies."}
    folder = run(tmp_path / "a", 0, 10, verdict="not audited", outcome="not applicable")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "verdict": verdict}))
    write_junit(folder, tmp_path / "j.xml")
    assert cases(tmp_path / "j.xml") == {
        "An attack": ["skipped"],
        "Another": ["skipped"],
        "verdict": ["error"],
    }
