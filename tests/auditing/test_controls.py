"""Controls on made-up rungs: which are tried, by whom, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from exhume.auditing.case import Ladder, Row, Rung, relevant
from exhume.auditing.controls import climb, reach_chart
from exhume.core.contract import ExhumeError, NotApplicable, silent
from exhume.core.evidence import LineupRow
from exhume.core.results import AttackSpec
from exhume.report.folder import RunFolder
from exhume.score.intervals import clopper_pearson

NAMES = {"a": "Attack A"}


def rows() -> list[Row]:
    return [Row(AttackSpec(name, name), None, "") for name in "abc"]


def row(identified: int, targets: int = 16, p: float | None = None) -> LineupRow:
    if p is None:
        p = 1e-4 if identified >= 4 else 1.0
    return LineupRow(identified, targets, 99, 0.01, p, 3, 0.2)


OWN = {"a": row(0, 100), "b": row(1, 100), "c": row(0, 100)}


@dataclass
class Tried:
    """A ladder by batch size, and which attacks were run on which of its rungs."""

    find: Callable[[int, str], int | LineupRow | Exception | None]  # (batch, attack)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    seconds: Mapping[int, float] = field(default_factory=dict)
    runs: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    def ladder(self) -> Ladder:
        rungs = tuple(
            Rung(str(batch), f"at batch {batch}", self.seconds.get(batch, 1.0), self._run(batch))
            for batch in self.batches
        )
        return Ladder("batch", "32", "at your 32", rungs)

    def _run(self, batch: int):
        def find(attacks):
            self.runs.append((batch, attacks))
            found = {}
            for attack in attacks:
                answer = self.find(batch, attack)
                if isinstance(answer, Exception):
                    raise answer
                if answer is not None:
                    found[attack] = answer if isinstance(answer, LineupRow) else row(answer)
            return found

        return lambda *_: SimpleNamespace(kind_name="", rows=rows, find=find)

    @property
    def order(self) -> list[int]:
        return [batch for batch, _ in self.runs]


@pytest.fixture
def folder(tmp_path, canned):
    return RunFolder.create(tmp_path / "run")


def climbed(tried: Tried, folder, names=NAMES, *, seconds=None):
    return climb(
        "the update",
        [tried.ladder()],
        names,
        OWN,
        tests=3,
        seconds=seconds,
        folder=folder,
        progress=silent,
    )


# Which rungs are tried


@pytest.mark.parametrize(
    ("reaches", "order", "nearest"),
    [
        (0, [1], ""),  # the easiest fails: nothing more is tried
        (1, [1, 4, 2], "at batch 1"),
        (2, [1, 4, 2], "at batch 2"),
        (4, [1, 4, 8], "at batch 4"),
        (8, [1, 4, 8, 16], "at batch 8"),
        (32, [1, 4, 8, 16], "at batch 16"),
    ],
)
def test_the_easiest_first_then_half_of_what_is_left(folder, reaches, order, nearest):
    tried = Tried(lambda batch, _: 16 if batch <= reaches else 0)
    found = climbed(tried, folder)
    assert tried.order == order
    assert found.reach["a"].nearest == nearest
    assert [int(c.value) for c in found.controls] == sorted(order)  # easiest first


def test_no_more_than_four_rungs(folder):
    tried = Tried(lambda batch, _: 16, tuple(range(1, 40)))
    climbed(tried, folder)
    assert tried.order == [1, 20, 30, 35]


@pytest.mark.parametrize(("seconds", "tried"), [(0.5, 0), (1.0, 1), (1.5, 1), (2.0, 2), (None, 2)])
def test_a_ladder_has_what_those_before_it_left(folder, seconds, tried):
    """The first shows nothing in a second; the second needs one as well."""
    ladders = [Tried(lambda *_: 0, (1,)), Tried(lambda *_: 16, (1,))]
    limits = {"tests": 3, "seconds": seconds, "folder": folder, "progress": silent}
    result = climb("the update", [one.ladder() for one in ladders], NAMES, OWN, **limits)
    assert [len(one.runs) for one in ladders] == [int(tried > 0), int(tried > 1)]
    assert result.earned == (tried == 2)


def counted(reaches: int, copies=(256, 64, 16, 8, 4, 2)) -> tuple[Ladder, list[int]]:
    """Rungs on which a record counts so many times; the attack works from `reaches` times on."""
    order: list[int] = []

    def run(times: int):
        def find(attacks):
            order.append(times)
            return {attack: row(16 if times >= reaches else 0) for attack in attacks}

        return lambda *_: SimpleNamespace(rows=rows, find=find, kind_name="")

    rungs = tuple(
        Rung(str(m), f"where it counts {m} times", 1.0, run(m), m, relevant(m, 400)) for m in copies
    )
    return Ladder("times that a record counts", "once", "once", rungs), order


@pytest.mark.parametrize(
    ("reaches", "order", "distance", "earned"),
    [
        (2, [16, 4, 2], 2, True),
        (4, [16, 4, 2], 4, True),
        (8, [16, 4, 8], 8, True),
        (16, [16, 4, 8], 16, True),
        (64, [16, 64], 64, False),  # it tells how far away the system is, and no more
        (256, [16, 64, 256], 256, False),
        (1000, [16, 64, 256], None, False),
    ],
)
def test_how_often_a_record_must_count(folder, reaches, order, distance, earned):
    ladder, tried = counted(reaches)
    how = {"tests": 3, "seconds": None, "folder": folder, "progress": silent}
    reach = climb("the weights", [ladder], NAMES, OWN, **how).reach["a"]
    assert tried == order
    assert (reach.distance, bool(reach.nearest)) == (distance, earned)


@pytest.mark.parametrize(
    ("counts", "records", "says"),
    [(16, 160, True), (16, 159, False), (17, 1000, False), (2, 19, False), (2, 20, True)],
)
def test_what_counts_too_often_says_nothing(counts, records, says):
    assert relevant(counts, records) is says


@pytest.mark.parametrize("earned", [True, False])
def test_the_next_ladder_is_climbed_where_the_first_shows_nothing(folder, earned):
    noise = Tried(lambda *_: 16 if earned else 0)
    ladder, tried = counted(8)
    how = {"tests": 3, "seconds": None, "folder": folder, "progress": silent}
    climbed = climb("the weights", [noise.ladder(), ladder], NAMES, OWN, **how)
    assert bool(tried) is not earned
    assert climbed.reach["a"].distance == (None if earned else 8)
    assert climbed.earned
    assert climbed.seconds == len(noise.runs) + len(tried)


def test_a_ladder_of_one_rung(folder):
    tried = Tried(lambda batch, _: 16, (1,))
    assert climbed(tried, folder).reach["a"].nearest == "at batch 1"
    assert tried.order == [1]


@pytest.mark.parametrize("ladders", [[], [Ladder("batch", "1", "at your 1", ())]])
def test_without_an_easier_version_nothing_is_earned(folder, ladders):
    found = climb(
        "the update", ladders, NAMES, OWN, tests=3, seconds=None, folder=folder, progress=silent
    )
    assert found.controls == ()
    assert found.reach["a"].nearest == ""
    assert found.reach["a"].sentence == "there is no easier version of it to try"


# What works


@pytest.mark.parametrize(
    ("answer", "works"),
    [
        (row(8, 16, p=0.01), True),
        (row(7, 16, p=1e-4), False),  # less than half
        (row(16, 16, p=0.011), False),  # perhaps by chance
        (row(0, 0, p=1e-4), False),  # nobody was lined up
    ],
)
def test_half_of_the_targets_and_more_than_chance(folder, answer, works):
    found = climbed(Tried(lambda *_: answer, (1,)), folder)
    assert found.controls[0].works is works
    assert bool(found.reach["a"].nearest) is works


# Time


def test_a_budget_that_is_too_small_runs_nothing_and_says_so(folder):
    tried = Tried(lambda *_: 16, seconds={1: 40.0})
    found = climbed(tried, folder, seconds=30.0)
    assert tried.runs == []
    assert found.controls == ()
    reach = found.reach["a"]
    assert (reach.nearest, reach.low) == ("", 0.0)
    assert reach.sentence == "the easiest one takes about 40 s, 30 s were left"


def test_as_far_as_the_time_goes(folder):
    """Half-way to the user's does not fit any more: what is known stays."""
    tried = Tried(lambda *_: 16, seconds={1: 10.0, 4: 20.0, 8: 40.0})
    found = climbed(tried, folder, seconds=50.0)
    assert tried.order == [1, 4]
    assert found.reach["a"].nearest == "at batch 4"


# Several attacks


def test_the_two_that_find_most_on_the_easiest_climb_on(folder):
    names = {"a": "Attack A", "b": "Attack B", "c": "Attack C"}
    finds = {"a": 9, "b": 16, "c": 12}
    tried = Tried(lambda batch, attack: finds[attack] if batch <= 4 else 0)
    found = climbed(tried, folder, names)
    assert tried.runs[0] == (1, ("a", "b", "c"))
    assert {frozenset(attacks) for _, attacks in tried.runs[1:]} == {frozenset("bc")}
    assert {name: reach.nearest for name, reach in found.reach.items()} == {
        "a": "at batch 1",
        "b": "at batch 4",
        "c": "at batch 4",
    }


def test_one_that_works_leads_on_and_each_has_its_own_reach(folder):
    names = {"a": "Attack A", "b": "Attack B"}
    reaches = {"a": 1, "b": 8}
    tried = Tried(lambda batch, attack: 16 if batch <= reaches[attack] else 0)
    found = climbed(tried, folder, names)
    assert tried.order == [1, 4, 8, 16]
    assert found.reach["a"].nearest == "at batch 1"
    assert found.reach["b"].nearest == "at batch 8"
    assert {reach.release for reach in found.reach.values()} == {"the update"}


# What cannot be made


@pytest.mark.parametrize(
    "error", [ExhumeError("no such batch"), NotApplicable("no such batch", ever=True)]
)
def test_a_rung_that_cannot_be_made_is_noted_and_ends_nothing(folder, error):
    tried = Tried(lambda batch, _: error if batch == 4 else 16)
    found = climbed(tried, folder)
    assert tried.order == [1, 4, 2]
    notes = {c.value: c.note for c in found.controls}
    assert notes == {"1": "", "2": "", "4": "no such batch"}
    reach = found.reach["a"]
    assert reach.nearest == "at batch 2"
    assert reach.sentence.endswith("at your 32. Not every version could be made: no such batch.")
    assert "0 of 0" not in reach.sentence


def test_a_defect_is_not_hidden(folder):
    with pytest.raises(ZeroDivisionError):
        climbed(Tried(lambda *_: ZeroDivisionError()), folder)


def test_an_attack_that_does_not_apply_to_a_rung(folder):
    names = {"a": "Attack A", "b": "Attack B"}
    found = climbed(Tried(lambda _, attack: 16 if attack == "a" else None), folder, names)
    assert found.reach["a"].nearest == "at batch 16"
    assert found.reach["b"].nearest == ""
    assert {c.note for c in found.controls if c.attack == "b"} == {
        "the attack does not apply to it"
    }


# Words


def test_the_sentence_names_every_rung_that_was_tried_and_the_users_own(folder):
    finds = {1: 16, 2: 10, 4: 3, 8: 0}
    reach = climbed(Tried(lambda batch, _: finds[batch], (1, 2, 4, 8)), folder).reach["a"]
    assert reach.sentence == (
        "Attack A identifies 16 of 16 at batch 1, 10 of 16 at batch 2, 3 of 16 at batch 4, "
        "0 of 100 at your 32."
    )
    assert (reach.respect, reach.nearest) == ("batch", "at batch 2")
    assert (reach.best, reach.low) == ("at batch 1", pytest.approx(clopper_pearson(16, 16)[0]))


def test_the_sentence_where_nothing_works(folder):
    reach = climbed(Tried(lambda *_: 3), folder).reach["a"]
    assert reach.sentence == "Attack A identifies 3 of 16 at batch 1, 0 of 100 at your 32"
    assert (reach.nearest, reach.low) == ("", 0.0)


def test_progress_is_shown_and_comes_to_an_end(folder):
    said = []
    tried = Tried(lambda batch, _: 16 if batch == 1 else 0)
    climb(
        "the update",
        [tried.ladder()],
        NAMES,
        OWN,
        tests=3,
        seconds=None,
        folder=folder,
        progress=lambda *words: said.append(words),
    )
    assert said[0] == ("control: at batch 1", 0, 4)
    assert said[-1] == ("control", 4, 4)


# The chart


def test_the_chart_of_the_reach(folder):
    tried = Tried(lambda batch, _: {1: 16, 2: 10, 4: 3, 8: 0}[batch], (1, 2, 4, 8))
    found = climbed(tried, folder)
    chart = reach_chart("the update", tried.ladder(), found, OWN, NAMES)
    assert chart is not None
    assert chart.title == "How far the attacks reach: the update"
    assert (chart.x, chart.y) == ("batch", "share of records identified")
    points = chart.series["Attack A"]
    assert [(p.x, p.y) for p in points] == [
        ("1", 1.0),
        ("2", 10 / 16),
        ("4", 3 / 16),
        ("yours: 32", 0.0),
    ]
    assert (points[1].low, points[1].high) == pytest.approx(clopper_pearson(10, 16))


def test_no_chart_of_the_users_own_alone(folder):
    tried = Tried(lambda *_: ExhumeError("it cannot be made"))
    found = climbed(tried, folder)
    assert reach_chart("the update", tried.ladder(), found, OWN, NAMES) is None
