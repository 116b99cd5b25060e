"""The four words, from a section and its reach; and that less effort never reassures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhume.contract import NotApplicable, Outcome, Status
from exhume.evidence import LineupRow, Reach
from exhume.results import AttackSpec, Section
from exhume.score.lineup import LEVEL
from exhume.score.verdict import MOST_UNNOTICED, gravest, not_audited, noticed, verdict_on

SPEC = AttackSpec("a", "An attack")


def row(identified=0, targets=100, adjusted=1.0, needed=6, detectable=0.1):
    return LineupRow(identified, targets, 99, 0.02, adjusted, needed, detectable, adjusted=adjusted)


def section(lineup=None, **more):
    return Section(SPEC, Status(Outcome.CONVERGED), lineup=lineup or row(), **more)


def reach(low=0.8, nearest="without the noise"):
    return Reach(
        "it", "a", "noise", nearest, low, "An attack identifies 16 of 16 without the noise."
    )


def word(*arguments):
    return verdict_on(*arguments).word


def test_the_four_words():
    assert word(section(row(80, adjusted=1e-4))) == "leaks"
    more = section(row(80, adjusted=1e-4), knows_more="the client's head", counts=False)
    assert word(more) == "at risk"
    assert "who also knows the client's head" in verdict_on(more).sentence
    assert word(section(), reach()) == "no leak found"
    assert word(section()) == "not audited"
    refused = Section.inapplicable(SPEC, NotApplicable("no bias", ever=True))
    assert verdict_on(refused).sentence == "Not audited: no bias."


def test_no_leak_is_found_only_by_an_attack_that_works_somewhere():
    assert word(section(), reach(nearest="", low=0.0)) == "not audited"
    assert "not shown to work" in verdict_on(section(), reach(nearest="", low=0.0)).sentence
    quiet = verdict_on(section(), reach())
    assert "16 of 16 without the noise" in quiet.sentence
    assert "a leak of 12% of the records or more" in quiet.detail  # .1 / .8


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (section(doubt="the search did not converge"), "the search did not converge"),
        (section(row(targets=0)), "enough strangers"),
        (section(row(targets=3, needed=4, detectable=1.0)), "no power"),
        (section(row(targets=12, detectable=0.45)), "too few records"),
    ],
)
def test_silence_that_says_nothing(found, why):
    verdict = verdict_on(found, reach())
    assert verdict.word == "not audited"
    assert why in verdict.sentence


def test_a_proof_does_not_outweigh_a_line_up_that_knows_nobody():
    assert word(section(proved=3), reach()) == "no leak found"
    assert word(section(row(1, adjusted=0.2), proved=3)) == "leaks"
    assert word(replace(section(proved=3), lineup=None)) == "leaks"


def test_a_doubt_does_not_hide_a_leak():
    assert word(section(row(80, adjusted=LEVEL), doubt="stopped early")) == "leaks"


def test_gravest():
    leak, quiet = verdict_on(section(row(80, adjusted=1e-4))), verdict_on(section(), reach())
    assert gravest([not_audited("x"), quiet, leak]) is leak
    assert gravest([not_audited("x"), quiet]) is quiet


shares = st.floats(0.01, 1.0)


@given(low=shares, less=shares, detectable=shares, targets=st.integers(0, 50), doubt=st.booleans())
def test_less_effort_never_reassures(low, less, detectable, targets, doubt):
    """Fewer successes on the rung, or a search that did not end: no better word, no more power."""
    better = section(row(targets=targets, needed=min(3, targets + 1), detectable=detectable))
    worse = replace(better, doubt="it stopped early" if doubt else "")
    strong, weak = reach(max(low, less)), reach(min(low, less))
    if word(better, strong) == "not audited":
        assert word(worse, weak) == "not audited"
    assert noticed(worse.lineup, weak) >= noticed(better.lineup, strong)
    if word(worse, weak) == "no leak found":
        assert noticed(worse.lineup, weak) <= MOST_UNNOTICED
