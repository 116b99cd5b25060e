"""The four words, from a section and its reach; and that less effort never reassures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhume.core.contract import NotApplicable, Outcome, Status
from exhume.core.evidence import Epsilon, Extent, LineupRow, Reach
from exhume.core.results import AttackSpec, Section
from exhume.score.intervals import clopper_pearson
from exhume.score.lineup import LEVEL
from exhume.score.verdict import (
    MOST_UNNOTICED,
    broken,
    gravest,
    leak_of,
    not_audited,
    noticed,
    silent,
    verdict_on,
)

SPEC = AttackSpec("a", "An attack")


def row(identified=0, targets=100, adjusted=1.0, needed=6, detectable=0.1):
    return LineupRow(identified, targets, 99, 0.02, adjusted, needed, detectable, adjusted=adjusted)


def section(lineup=None, **more):
    return Section(SPEC, Status(Outcome.CONVERGED), lineup=lineup or row(), **more)


def reach(low=0.8, nearest="without the noise"):
    return Reach(
        *("it", "a", "noise", nearest, low, "An attack identifies 16 of 16 without the noise."),
        best="without the noise",
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


def test_every_word_in_full():
    leaks = verdict_on(section(row(80, adjusted=1e-4)))
    assert leaks.sentence == (
        "The release leaks: 80 of 100 records (80%) can be recognised: each is more like what came back than "
        "all of 99 strangers of the same class are; by chance 2 would be."
    )
    chance = (
        "By chance 2.0% would be identified (p = 0.0001, 0.0001 for all tests of this audit). 95% interval "
        "of the share, over these targets alone: 70.8% to 87.3%."
    )
    assert leaks.detail == chance
    more = section(row(80, adjusted=1e-4), knows_more="the client's head")
    assert verdict_on(more).detail == (
        f"What protects the records is that this stays secret, not what is released. {chance}"
    )
    told = verdict_on(replace(section(proved=2, knows_more="the head"), lineup=None))
    assert told.sentence == (
        "The records are at risk: an adversary who also knows the head gets 2 records back; those who do not "
        "know it found nothing."
    )
    assert told.detail.endswith("not what is released.")
    quiet = verdict_on(section(), reach())
    assert quiet.sentence == (
        "No leak found: 0 of 100 records (0%) are more like their reconstructions than all of 99 strangers "
        "of the same class, not more than chance explains. An attack identifies 16 of 16 without the noise."
    )
    assert quiet.detail == (
        "An attack: a leak of 12% of the records or more would have been noticed with 95% probability, if it "
        "succeeds as it does without the noise. A smaller leak, or another attack, is not ruled out."
    )


def test_proofs_in_words():
    one = replace(section(proved=1, notes=("it gives the update back", "by the way")), lineup=None)
    verdict = verdict_on(one)
    assert verdict.sentence == (
        "The release leaks: 1 record was reconstructed, and the release itself proves it."
    )
    assert verdict.detail == "it gives the update back"
    many = verdict_on(section(row(3, adjusted=LEVEL * 1.01), proved=3))
    assert many.sentence.startswith("The release leaks: 3 records were reconstructed")
    assert broken("too good").detail == "too good"
    assert broken("too good").word == "leaks"
    assert not_audited("No bias.").sentence == "Not audited: no bias."


def test_without_a_line_up_or_on_a_rung_that_never_works():
    assert "no records to compare" in verdict_on(replace(section(), lineup=None), reach()).sentence
    assert noticed(row(detectable=0.25), reach(0.5)) == 0.5
    assert noticed(row(detectable=0.6), reach(0.5)) == 1.0
    assert noticed(row(detectable=0.25), reach(0.0)) == 1.0
    assert (
        word(section(row(detectable=0.25)), reach(0.5)) == "no leak found"
    )  # exactly half is enough
    assert word(section(row(detectable=0.2501)), reach(0.5)) == "not audited"
    every = section(
        row(targets=3, needed=3, detectable=0.3)
    )  # all of them must be identified: possible
    assert word(every, reach()) == "no leak found"


def test_who_is_silent():
    assert silent(section())
    assert not silent(section(row(80, adjusted=LEVEL)))
    assert not silent(section(doubt="it stopped early"))
    assert not silent(section(row(targets=0)))
    assert not silent(replace(section(), lineup=None))
    assert not silent(Section.inapplicable(SPEC, NotApplicable("no bias", ever=True)))


def test_how_much_leaks():
    leak = leak_of(row(80, detectable=0.07))
    assert (leak.successes, leak.trials, leak.chance, leak.detectable) == (80, 100, 0.02, 0.07)
    assert (leak.low, leak.high) == clopper_pearson(80, 100)
    assert leak_of(None) is None
    assert leak_of(row(targets=0)) is None


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
    assert word(section(row(targets=0), proved=3)) == "leaks"
    assert word(replace(section(proved=3), lineup=None)) == "leaks"


def test_a_doubt_does_not_hide_a_leak():
    assert word(section(row(80, adjusted=1e-4), doubt="stopped early")) == "leaks"


@pytest.mark.parametrize(
    ("adjusted", "second", "leaks"),
    [(0.001, None, True), (0.0011, None, False), (LEVEL, 0.05, True), (LEVEL, 0.051, False)],
)
def test_a_borderline_leak_must_show_among_new_strangers(adjusted, second, leaks):
    found = section(replace(row(9, adjusted=adjusted), second=second))
    verdict = verdict_on(found, reach())
    assert verdict.word == ("leaks" if leaks else "not audited")  # and silence is not earned either
    assert ("borderline" in verdict.sentence) != leaks
    if leaks and second is not None:
        assert "Drawn again with new strangers: p = 0.05." in verdict.detail


def test_a_leak_of_those_that_the_attacker_is_surest_of():
    surest = replace(row(6, adjusted=1e-4, targets=10), surest="releases")
    found = section(surest=surest)
    verdict = verdict_on(found, reach())
    assert verdict.word == "leaks"
    assert "of the 10 records that the attacker is surest of, 6 can be" in verdict.sentence
    answers = replace(row(6, adjusted=1e-4), surest="answers")
    assert "6 of 100 records" in verdict_on(section(surest=answers), reach()).sentence
    assert word(section(row(80, adjusted=1e-4), surest=surest)) == "leaks"
    assert "80 of 100" in verdict_on(section(row(80, adjusted=1e-4), surest=surest)).sentence
    doubtful = replace(surest, adjusted=0.009, second=0.3)
    assert word(section(surest=doubtful), reach()) == "not audited"


def test_strength_and_epsilon_in_words():
    near = Extent(
        strength="reconstructed", epsilon=Epsilon(1.0, 3.0, sentence="epsilon is at least 1.")
    )
    verdict = verdict_on(section(row(80, adjusted=1e-4), extent=near))
    assert "were reconstructed" in verdict.sentence
    assert verdict.detail.endswith("epsilon is at least 1.")


def test_gravest():
    leak, quiet = verdict_on(section(row(80, adjusted=1e-4))), verdict_on(section(), reach())
    assert gravest([not_audited("x"), quiet, leak]) is leak
    assert gravest([not_audited("x"), quiet]) is quiet
    risk = verdict_on(section(row(80, adjusted=1e-4), knows_more="the head"))
    assert gravest([quiet, risk, not_audited("x")]) is risk
    assert gravest([risk, leak]) is leak


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


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        (
            {"left_out": 54, "copies": 54},
            "6 of 6 records (100%; 54 of 60 left out: near-duplicates)",
        ),
        (
            {"left_out": 9, "copies": 4, "held": 2},
            "6 of 6 records (100%; 9 of 15 left out: 4 near-duplicates, 2 held by the adversary, "
            "3 without enough strangers)",
        ),
        ({"left_out": 1, "copies": 1}, "6 of 6 records (100%)"),
    ],
)
def test_a_headline_says_of_how_many_the_rest_is(causes, words):
    few = replace(row(6, targets=6, adjusted=1e-4), **causes)
    assert words in verdict_on(section(few)).sentence
    silent_row = replace(row(0, targets=6, needed=2), **causes)
    assert words.replace("6 of 6 records (100%", "0 of 6 records (0%") in (
        verdict_on(section(silent_row), reach()).sentence
    )


def test_where_nobody_is_left_the_causes_are_said():
    nobody = replace(row(0, targets=0), left_out=56, copies=48, held=8)
    assert "56 left out: 48 near-duplicates, 8 held by the adversary" in (
        verdict_on(section(nobody), reach()).sentence
    )
