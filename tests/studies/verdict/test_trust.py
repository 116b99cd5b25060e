"""The study of the verdict: one audit of each quick system, and how its numbers are judged."""

from __future__ import annotations

import pytest

from exhume.studies import run_study
from exhume.studies.verdict import trust


@pytest.mark.xdist_group("verdict")
def test_every_quick_system_has_its_word(tmp_path):
    """Certain leaks leak, weak effort of every kind reassures nobody, a defence that holds is said to."""
    result = run_study("verdict", "smoke", tmp_path)
    claims = {claim.id: claim for claim in result.claims}
    for name in ("no-miss", "no-false-reassurance", "says-something", "no-average"):
        assert claims[name].holds, claims[name].measured
    assert result.metrics["null.worst_cell"] == 0
    assert not (tmp_path / "audits").exists() or not any((tmp_path / "audits").iterdir())


def row(word, overclaims=0.0):
    return {"word": float(trust.WORDS.index(word)), "seconds": 1.0, "overclaims": overclaims}


def planted(**changed):
    """What every cell would say of itself, but for those that are changed."""
    right = {
        "null": "not audited",
        "certain": "leaks",
        "unknown": "not audited",
        "defended": "no leak found",
        "average": "not audited",
    }
    cells = {name: [row(right[group])] * 30 for name, (group, _) in trust._SYSTEMS.items()}
    return cells | {name.replace("_", "-"): rows for name, rows in changed.items()}


def holding(cells):
    return {name: holds for name, (*_, holds) in trust._claims(trust._metrics(cells)).items()}


def test_what_the_claims_ask_for():
    assert all(holding(planted()).values())
    worst = planted(drowned=[row("leaks")] * 3 + [row("not audited")] * 27)
    assert not holding(worst)["no-false-alarm"]  # three of one cell
    assert not holding(planted(linear=[row("at risk")]))["no-miss"]
    assert not holding(planted(unfinished=[row("no leak found")]))["no-false-reassurance"]
    assert not holding(planted(private=[row("not audited")] * 60))["says-something"]
    assert not holding(planted(averaged=[row("leaks", 1.0)]))["no-average"]
