from __future__ import annotations

import json

import pytest

from exhume.auditing.case import Inputs, Row
from exhume.auditing.plan import Plan, PlannedRelease, plan_rows
from exhume.auditing.run import plan
from exhume.core.errors import ExhumeError
from exhume.core.results import AttackSpec
from exhume.settings import Settings


def option(name: str, seconds: float, release: str = "it", **more) -> tuple[str, Row]:
    return release, Row(AttackSpec(name, name), None, "sees all", float(seconds), **more)


def planned(options, budget):
    return [row for _, row in plan_rows(options, budget)]


def test_without_a_budget_all_that_was_asked_for_is_taken():
    rows = planned([option("a", 1e9), option("extra", 1, when="extra")], None)
    assert [row.run for row in rows] == [True, False]
    assert rows[1].why == "only with --budget; it would take about 1 s"


def test_a_budget_takes_what_fits_in_order_and_says_what_was_left():
    options = [option("a", 60), option("b", 500), option("c", 30, when="extra"), option("d", 20)]
    rows = planned(options, 100.0)
    assert [row.run for row in rows] == [True, False, True, False]
    assert rows[1].why == "it would take about 8 min, 40 s of the budget were left"
    assert rows[3].why == "it would take about 20 s, 10 s of the budget were left"


def test_what_is_cheap_and_exact_runs_whatever_the_budget():
    options = [option("a", 20, exact=True), option("search", 50), option("b", 20, exact=True)]
    assert [row.run for row in planned(options, 30.0)] == [True, False, True]
    assert [row.run for row in planned(options, 100.0)] == [True, True, True]


def test_what_does_not_fit_is_tried_on_fewer_records():
    def fewer(seconds: float) -> Row | None:
        count = int(seconds / 10)
        return option("a", 10 * count, records=count)[1] if count >= 2 else None

    whole = option("a", 80, records=8, fewer=fewer)
    fits, some, none = (planned([whole], budget)[0] for budget in (100.0, 45.0, 15.0))
    assert (fits.records, some.records) == (8, 4)
    assert some.run
    assert none.why == "it would take about 80 s, 15 s of the budget were left"
    assert planned([whole], None)[0].records == 8


def test_what_does_not_apply_is_left_with_its_reason_whatever_the_budget():
    (row,) = planned([option("a", 1, why_not="it has a convolution")], None)
    assert (row.run, row.why) == (False, "does not apply: it has a convolution")


def test_what_goes_on_from_another_is_left_with_it():
    rows = planned([option("a", 500), option("b", 1, needs="a")], 100.0)
    assert [row.run for row in rows] == [False, False]
    assert rows[1].why == "it goes on from a, which was left out"


def test_what_goes_on_is_of_the_same_release():
    first = option("a", 500, release="one")
    rows = planned(
        [first, option("a", 1, release="two"), option("b", 1, needs="a", release="two")], 100.0
    )
    assert [row.run for row in rows] == [False, True, True]


def test_a_plan_in_lines_and_as_json():
    options = [
        option("Span", 30, release="the updates", records=8, steps=2000),
        option("Tensor", 900, release="the updates"),
    ]
    rows = tuple(row for _, row in plan_rows(options, 60.0))
    inputs = Inputs("mnist", 7, 2, uses=((8, "attacked"), (0, "public"), (92, "held")))
    planned_release = PlannedRelease("update", "the updates", inputs, rows, 0.3, given=1000)
    plan = Plan((planned_release,), 60.0)
    assert plan.lines() == [
        "plan: the updates (seed 7, threads 2)",
        "  records: 100 of the 1,000 in mnist: 8 attacked, 92 held",
        "  attack: Span: 8 records, 2,000 steps, about 30 s",
        "  left out: Tensor: it would take about 15 min, 30 s of the budget were left",
        "  if nothing comes back: controls, the easiest takes under 1 s",
        "plan: about 30 s in all, 60 CPU seconds (budget 60 s)",
    ]
    (release,) = json.loads(json.dumps(plan.to_json()))["releases"]
    assert (release["seed"], release["data"], release["threads"]) == (7, "mnist", 2)
    assert [attack["run"] for attack in release["attacks"]] == [True, False]
    assert (release["given"], release["uses"]["attacked"]) == (1000, 8)
    assert plan.to_json()["estimated_cpu_seconds"] == 60.0


def test_a_plan_says_the_records_it_is_given_where_a_release_does_not_say_its_roles():
    alone = PlannedRelease("split", "the features", Inputs("faces", 0, 1), (), given=400)
    assert "  records: 400 in faces" in Plan((alone,), None).lines()
    nothing = PlannedRelease("checkpoint", "the checkpoint", Inputs("", 0, 1), ())
    assert Plan((nothing,), None).lines() == [
        "plan: the checkpoint (seed 0, threads 1)",
        "plan: under 1 s in all, 1 CPU seconds (no limit)",
    ]


def test_a_set_in_which_many_have_a_double_is_warned_of_beforehand():
    inputs = Inputs("people.csv", 0, 1)
    doubled = PlannedRelease("weights", "the model", inputs, (), given=50, copies=((10, 50),))
    (warning,) = doubled.warnings
    assert "10 of 50 records are near-duplicates" in warning
    assert f"  {warning}" in Plan((doubled,), None).lines()
    assert Plan((doubled,), None).to_json()["releases"][0]["warnings"] == [warning]
    few = PlannedRelease("weights", "the model", inputs, (), given=50, copies=((9, 50), (0, 0)))
    assert few.warnings == []


def test_the_plan_of_a_table_counts_its_doubles(tmp_path):
    rows = [f"{i % 40},{(7 * i) % 40},{'yes' if i % 40 < 20 else 'no'}" for i in range(80)]
    (tmp_path / "twice.csv").write_text("\n".join(["age,hours,member", *rows]) + "\n")
    made = plan(Settings.from_mapping({"data": {"source": str(tmp_path / "twice.csv")}}))
    (release,) = made.releases
    assert release.copies == ((40, 80),)
    assert len(release.warnings) == 1


def test_the_plan_says_what_was_filled_in(tmp_path):
    rows = [
        f"{i if i % 5 else ''},{(7 * i) % 40},{'yes' if i % 40 < 20 else 'no'}" for i in range(80)
    ]
    (tmp_path / "gaps.csv").write_text("\n".join(["age,hours,member", *rows]) + "\n")
    data = {"source": str(tmp_path / "gaps.csv")}
    with pytest.raises(ExhumeError, match="16 numbers are missing"):
        plan(Settings.from_mapping({"data": data}))
    (release,) = plan(Settings.from_mapping({"data": {**data, "missing": "mean"}})).releases
    assert any("16 of age" in warning for warning in release.warnings)
