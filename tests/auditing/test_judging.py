"""From findings to verdicts: Holm over what was planned, controls where all are silent, and the words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from exhume.auditing.case import Ladder, Row, Rung
from exhume.auditing.judge import holm_adjust, judge_releases, overall
from exhume.auditing.look import STORED
from exhume.core.contract import NotApplicable, Outcome, Status, silent
from exhume.core.evidence import Extent, LineupRow
from exhume.core.results import AttackSpec, Findings, PlannedAttack, Section, Verdict
from exhume.report.folder import RunFolder
from exhume.score.intervals import clopper_pearson, rate_of
from exhume.score.lineup import LEVEL
from exhume.score.verdict import leak_of, not_audited

RELEASE = "the update"
FOUND, NOTHING = (60, 1e-4), (1, 0.6)  # identified of 100, p


def rows() -> list[Row]:
    return [Row(AttackSpec(name, name), None, "") for name in "ab"]


def row(identified: int, p: float, targets: int = 100) -> LineupRow:
    return LineupRow(identified, targets, 99, 0.01, p, 5, 0.1, adjusted=p, second=p)


def finding(name: str, found=NOTHING, release: str = RELEASE, **more) -> Findings:
    lineup = row(*found) if found else None
    section = Section(
        AttackSpec(name, f"Attack {name}"),
        Status(Outcome.CONVERGED),
        leak=leak_of(lineup),
        release=release,
        lineup=lineup,
    )
    return Findings(replace(section, **more))


def refused(name: str, why: str) -> Findings:
    section = Section.inapplicable(AttackSpec(name, name), NotApplicable(why, ever=True))
    return Findings(replace(section, release=RELEASE), not_audited(why))


def ladder(identified: int = 16, ran: list | None = None, seconds: float = 1.0) -> Ladder:
    """One rung, on which every attack identifies so many of 16."""

    def find(attacks):
        if ran is not None:
            ran.append(attacks)
        return {name: row(identified, 1e-4, 16) for name in attacks}

    rung = Rung(
        "1", "at batch 1", seconds, lambda *_: SimpleNamespace(kind_name="", rows=rows, find=find)
    )
    return Ladder("batch", "32", "at your 32", (rung,))


@pytest.fixture
def judge(tmp_path, canned):
    folder = RunFolder.create(tmp_path / "run")

    def judge(found, ladders=None, plan=(), seconds=None):
        ladders = {RELEASE: ladder()} if ladders is None else ladders
        ladders = {name: [one] if one else [] for name, one in ladders.items()}
        how = {"tests": 3, "seconds": seconds, "folder": folder, "progress": silent}
        return judge_releases(found, ladders, plan, **how)

    return judge


def never() -> Ladder:
    """A ladder that must not be climbed."""

    def run(folder, progress):
        raise AssertionError("there was nothing to earn")

    return Ladder("batch", "32", "at your 32", (Rung("1", "at batch 1", 1.0, run),))


# Holm


def p_values(found) -> list[float]:
    return [one.section.lineup.adjusted for one in found if one.section.lineup]


def test_holm_over_what_was_planned():
    found = [finding("a", (9, 0.02)), finding("b", (9, 0.004))]
    assert p_values(holm_adjust(found, 2)) == pytest.approx([0.02, 0.008])
    assert p_values(holm_adjust(found, 5)) == pytest.approx(
        [0.08, 0.02]
    )  # three did not come to run
    assert p_values(holm_adjust(found, 0)) == pytest.approx(
        [0.02, 0.008]
    )  # never fewer than there are


def test_the_tenth_that_the_attacker_is_surest_of_is_a_test_of_its_own():
    """Two of each attack that decides; none of one that only knows more."""
    surest = replace(row(9, 0.002), surest="releases")
    found = [
        finding("a", (9, 0.02), surest=surest),
        finding("more", (9, 0.004), counts=False, knows_more="the head", surest=surest),
    ]
    new = holm_adjust(found, 3)
    assert p_values(new) == pytest.approx([0.02, 0.008])
    assert new[0].section.surest.adjusted == pytest.approx(0.006)
    assert new[1].section.surest is surest
    assert holm_adjust(found, 8)[0].section.surest.adjusted == pytest.approx(0.016)


def test_how_many_tests_are_planned():
    kinds = [("decides", 2), ("knows more", 1), ("beside", 0)]
    for role, tests in kinds:
        assert Row(AttackSpec("a", "a"), None, "", role=role).tests == tests


def test_a_leak_of_the_surest_alone(judge):
    surest = replace(row(9, 1e-4), surest="releases")
    judged = judge([finding("a", surest=surest)], {RELEASE: never()})
    assert judged.verdicts[RELEASE].word == "leaks"


def test_a_borderline_attack_leaves_the_release_unaudited(judge):
    """Silence of the others does not cover it."""
    doubtful = replace(row(9, 0.006), second=0.4)
    judged = judge([finding("a"), finding("b", None, lineup=doubtful)], {RELEASE: never()})
    assert judged.verdicts[RELEASE].word == "not audited"
    assert "borderline" in judged.verdicts[RELEASE].sentence


def test_strength_stands_beside_leaks_only(judge):
    known = Extent(strength="reconstructed", expected_by_chance=1.0)
    judged = judge([finding("a", FOUND, extent=known), finding("b", extent=known)])
    assert [one.section.extent.strength for one in judged.found] == ["reconstructed", None]
    assert [one.section.extent.expected_by_chance for one in judged.found] == [1.0, 1.0]


def test_only_what_decides_is_tested():
    """A comparison is no test; an adversary who knows more is one."""
    beside = finding("beside", (9, 0.004), counts=False)
    more = finding("more", (9, 0.004), counts=False, knows_more="the head")
    nobody = finding("nobody", None)
    found = holm_adjust([beside, nobody, finding("a", (9, 0.003)), more], 0)
    assert p_values(found) == pytest.approx([0.004, 0.006, 0.006])
    assert found[0] is beside
    assert found[1] is nobody


def test_one_of_many_tests_is_no_leak_any_more(judge):
    found = [finding("a", (9, 0.004))]
    assert judge(holm_adjust(found, 1), {RELEASE: None}).verdicts[RELEASE].word == "leaks"
    assert judge(holm_adjust(found, 3), {RELEASE: None}).verdicts[RELEASE].word == "not audited"


# Controls


def test_a_leak_needs_no_control(judge):
    judged = judge([finding("a", FOUND), finding("b")], {RELEASE: never()})
    assert judged.verdicts[RELEASE].word == "leaks"
    assert "60 of 100 records (60%)" in judged.verdicts[RELEASE].sentence
    assert judged.controls == judged.reach == judged.charts == ()
    words = {one.section.spec.id: one.section.verdict for one in judged.found}
    assert words == {"a": "leaks", "b": "not audited"}  # b was not shown to work


def test_a_proof_needs_none_either(judge):
    judged = judge([finding("a", None, proved=2)], {RELEASE: never()})
    assert judged.verdicts[RELEASE].word == "leaks"
    assert (
        "2 records were reconstructed, and the release itself" in judged.verdicts[RELEASE].sentence
    )


def test_at_risk_needs_no_control(judge):
    more = finding("more", FOUND, counts=False, knows_more="the client's head")
    judged = judge([finding("a"), more], {RELEASE: never()})
    verdict = judged.verdicts[RELEASE]
    assert verdict.word == "at risk"
    assert "an adversary who also knows the client's head gets 60 of 100" in verdict.sentence


def test_who_knows_more_and_finds_nothing_changes_nothing(judge):
    more = finding("more", counts=False, knows_more="the client's head")
    ran = []
    judged = judge([finding("a"), more], {RELEASE: ladder(ran=ran)})
    assert judged.verdicts[RELEASE].word == "no leak found"
    assert ran == [("a",)]  # only the assumed adversary has something to earn


def test_a_bound_beside_decides_nothing(judge):
    judged = judge([finding("a"), finding("bound", FOUND, counts=False)])
    assert judged.verdicts[RELEASE].word == "no leak found"


def test_silence_with_a_rung_that_works(judge):
    judged = judge([finding("a")])
    verdict, section = judged.verdicts[RELEASE], judged.found[0].section
    assert verdict.word == section.verdict == "no leak found"
    assert verdict.sentence.endswith(
        "Attack a identifies 16 of 16 at batch 1, 1 of 100 at your 32."
    )
    low = clopper_pearson(16, 16)[0]
    assert section.leak.detectable == pytest.approx(0.1 / low)
    assert f"a leak of {0.1 / low:.0%} of the records or more" in verdict.detail
    assert [c.works for c in judged.controls] == [True]
    assert [r.nearest for r in judged.reach] == ["at batch 1"]
    assert [chart.title for chart in judged.charts] == [f"How far the attacks reach: {RELEASE}"]


@pytest.mark.parametrize(
    ("own", "seconds", "why"),
    [
        (ladder(7), None, "identifies 7 of 16 at batch 1, 1 of 100 at your 32."),
        (None, None, "there is no easier version of it to try."),
        (
            ladder(seconds=40.0),
            30.0,
            "the easiest one takes about 40 s, 30 s were left.",
        ),
    ],
    ids=["does not work", "no ladder", "budget"],
)
def test_silence_that_has_not_earned_its_word(judge, own, seconds, why):
    judged = judge([finding("a")], {RELEASE: own}, seconds=seconds)
    verdict = judged.verdicts[RELEASE]
    assert verdict.word == judged.found[0].section.verdict == "not audited"
    assert (
        "attack a found no more than chance explains, and was not shown to work" in verdict.sentence
    )
    assert verdict.sentence.endswith(why)
    assert judged.found[0].section.leak.detectable == 0.1  # nothing is known: as the test has it


def test_a_doubt_about_one_makes_silence_of_all_nothing(judge):
    doubted = finding("b", doubt="the search did not converge")
    judged = judge([finding("a"), doubted], {RELEASE: never()})
    verdict = judged.verdicts[RELEASE]
    assert verdict.word == "not audited"
    assert verdict.sentence == "Not audited: the search did not converge."


def test_a_doubt_hides_no_leak_and_no_risk(judge):
    doubted = finding("b", doubt="the search did not converge")
    assert judge([doubted, finding("a", FOUND)]).verdicts[RELEASE].word == "leaks"
    more = finding("more", FOUND, counts=False, knows_more="the head")
    assert judge([doubted, more]).verdicts[RELEASE].word == "at risk"
    found = finding("b", FOUND, doubt="the search did not converge")
    assert judge([found]).verdicts[RELEASE].word == "leaks"


def test_a_look_is_not_controlled_and_not_quoted(judge):
    """What lies elsewhere in an easier version says nothing, so that its silence is not why."""
    looked = finding("b", (3, 0.6), spec=STORED)
    judged = judge([looked, finding("a")], {RELEASE: ladder(identified=2)})
    assert {control.attack for control in judged.controls} == {"a"}
    assert "Attack a" in judged.verdicts[RELEASE].sentence
    assert "was not shown to work" in judged.verdicts[RELEASE].sentence


def test_one_that_could_not_run_says_nothing(judge):
    judged = judge([refused("b", "it has no bias"), finding("a")])
    assert judged.verdicts[RELEASE].word == "no leak found"
    alone = judge([refused("b", "it has no bias")], {RELEASE: never()})
    assert alone.verdicts[RELEASE].sentence == "Not audited: it has no bias."


def test_where_nothing_was_run_the_plan_says_why(judge):
    rows = [
        PlannedAttack(name, name.upper(), RELEASE, "", 1.0, False, f"does not apply: no {name}")
        for name in ("x", "y")
    ]
    one = judge([], {RELEASE: never()}, rows[:1]).verdicts[RELEASE]
    assert one.sentence == "Not audited: no x."
    both = judge([], {RELEASE: never()}, rows).verdicts[RELEASE]
    assert both.sentence == "Not audited: x: does not apply: no x; Y: does not apply: no y."


def test_every_release_has_its_own_controls(judge):
    found = [finding("a", release="one"), finding("a", release="two"), finding("a", FOUND, "three")]
    judged = judge(found, {"one": ladder(), "two": ladder(3), "three": never()})
    words = {name: verdict.word for name, verdict in judged.verdicts.items()}
    assert words == {"one": "no leak found", "two": "not audited", "three": "leaks"}
    assert [c.release for c in judged.controls] == ["one", "two"]
    assert len(judged.found) == 3


def test_the_power_is_that_of_the_level_which_all_tests_leave():
    tail = (1.0, 0.6, 0.2, 0.05, 0.009, 0.0009, 1e-4)
    found = finding("a", None, lineup=replace(row(1, 0.6), tail=tail), leak=rate_of(1, 100))
    alone, among_nine = (holm_adjust([found], planned)[0].section for planned in (1, 9))
    assert (alone.lineup.needed, among_nine.lineup.needed) == (4, 5)
    assert tail[5] <= LEVEL / 9 < tail[4]
    assert alone.lineup.detectable < among_nine.lineup.detectable == among_nine.leak.detectable
    hundred = holm_adjust([found], 200)[0].section.lineup  # no count is enough any more
    assert (hundred.needed, hundred.detectable) == (101, 1.0)


# All releases together


def verdicts(*words: str) -> dict[str, Verdict]:
    return {f"release {i}": Verdict(word, f"It is {word}.", "") for i, word in enumerate(words)}


@pytest.mark.parametrize(
    ("words", "word", "sentence"),
    [
        (["at risk"], "at risk", "It is at risk."),
        (["leaks", "no leak found"], "leaks", "1 of 2 releases leak."),
        (
            ["at risk", "not audited", "at risk"],
            "at risk",
            "2 of 3 releases are at risk; nothing is known about release 1.",
        ),
        (["no leak found"] * 2, "no leak found", "No leak found in 2 of 2 releases."),
        (
            ["no leak found", "not audited", "not audited"],
            "not audited",
            "Not audited: nothing is known about release 1, release 2; no leak was found in the others.",
        ),
        (
            ["not audited"] * 2,
            "not audited",
            "Not audited: nothing is known about release 0, release 1.",
        ),
    ],
)
def test_several_releases(words, word, sentence):
    verdict = overall(verdicts(*words), "")
    assert (verdict.word, verdict.sentence) == (word, sentence)


def test_an_alarm_comes_first():
    assert overall(verdicts("no leak found"), "It was beaten.").detail == "It was beaten."
    assert overall(verdicts("no leak found"), "It was beaten.").word == "leaks"
