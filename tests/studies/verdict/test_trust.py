"""The study of the verdict: one audit of each quick system, and how its numbers are judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exhume.studies.claims import Words, claims_of
from exhume.studies.framework import RunOptions, run_study
from exhume.studies.verdict import trust

CLAIMED = ("no-miss", "no-false-reassurance", "says-something", "no-average")


def judged(result, names=CLAIMED):
    claims = {claim.id: claim for claim in result.claims}
    for name in names:
        assert claims[name].holds, claims[name].measured
    assert result.metrics["null.worst_cell"] == 0
    return result


@pytest.mark.network
def test_a_cheap_system_of_every_kind_has_its_word(tmp_path):
    """Certain leaks leak, weak effort reassures nobody; a proof of other records is no false alarm."""
    cells = (
        "constants",
        "others-of-the-class",
        "undefended",
        "linear",
        "few-shadows",
        "noisy-linear",
    )
    small = replace(trust.STUDY.scales["smoke"], cells=cells)
    study = replace(trust.STUDY, scales={"smoke": small})
    done = run_study(study, "smoke", tmp_path, RunOptions())
    result = judged(done, [name for name in CLAIMED if name != "says-something"])  # of no defence
    audits = {group: result.metrics[f"{group}.audits"] for group in small.audits}
    there = {group: count for group, count in audits.items() if count}
    assert there == {"null": 2, "certain": 2, "unknown": 2}
    assert not any((tmp_path / "audits").iterdir())  # they hold private records


@pytest.mark.slow
@pytest.mark.network
def test_every_quick_system_has_its_word(tmp_path):
    result = judged(run_study(trust.STUDY, "smoke", tmp_path, RunOptions()))
    assert result.metrics["average.audits"] == 1
    assert not any((tmp_path / "audits").iterdir())


def row(word, overclaims=0.0, cleared=0.0):
    number = trust.WORDS.index(word)
    about = {"seconds": 1.0, "overclaims": overclaims, "cleared": cleared}
    return {"word": number, "alarm": number < 2, **about}


def planted(**changed):
    """What every cell would say of itself, but for those that are changed."""
    right = {
        "null": "not audited",
        "certain": "leaks",
        "unknown": "not audited",
        "defended": "no leak found",
        "average": "not audited",
        "mixing": "at risk",
        "disguised": "leaks",
        "lying": "not audited",
        "verbatim": "leaks",
        "fixes": "leaks",
    }
    cells = {
        name: [row(right[group], cleared=float(name == "strong-leak"))] * 30
        for name, (group, _) in trust._SYSTEMS.items()
    }
    return cells | {name.replace("_", "-"): rows for name, rows in changed.items()}


def holding(cells):
    words = Words.of("verdict", None, trust._metrics(cells))
    return {name: holds for name, (*_, holds) in claims_of("verdict", words).items()}


def test_what_the_claims_ask_for():
    assert all(holding(planted()).values())
    worst = planted(drowned=[row("leaks")] * 3 + [row("not audited")] * 27)
    assert not holding(worst)["no-false-alarm"]  # three of one cell
    assert not holding(planted(linear=[row("at risk")]))["no-miss"]
    assert not holding(planted(unfinished=[row("no leak found")]))["no-false-reassurance"]
    assert not holding(planted(private=[row("not audited")] * 60))["says-something"]
    assert not holding(planted(averaged=[row("leaks", 1.0)]))["no-average"]
    for cell, claim in (
        ("cosines_little", "mixing"),
        ("rescaled", "disguised"),
        ("wrong_base", "lying"),
    ):
        assert not holding(planted(**{cell: [row("no leak found")]}))[claim]
    assert holding(planted(wrong_base=[row("leaks")] * 30))["lying"]  # the records are there
    assert not holding(planted(model_of_others=[row("leaks")] * 2))["lying"]
    assert not holding(planted(kept_rows=[row("at risk")]))["verbatim"]
    assert not holding(planted(weak_leak=[row("leaks", cleared=1.0)] * 2))["fixes"]
    assert not holding(planted(strong_leak=[row("leaks")] * 30))["fixes"]
