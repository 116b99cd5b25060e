"""Budgets hold: what is finished in time is judged and written, whatever the estimates were."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import exhume
from exhume import readers
from exhume.auditing.judge import Judged
from exhume.auditing.kinds.training import CLOSED_FORM, TrainingCase, read_training
from exhume.auditing.next_step import next_step
from exhume.auditing.plan import BY_HAND, TOO_LATE, Clock, stopped
from exhume.core.contract import Outcome, Status, silent
from exhume.core.errors import OutOfTime
from exhume.core.evidence import ControlRow, LineupRow
from exhume.core.results import Findings, Section, read_result
from exhume.report.page import draw
from exhume.score.verdict import not_audited
from exhume.settings import Brief
from exhume.store.shards import NullStore


@pytest.fixture
def brief(tmp_path):
    random = np.random.default_rng(0)
    y = np.arange(600) % 2
    x = random.normal(size=(600, 6)).astype(np.float32) + y[:, None]
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return {
        "data": {"source": str(tmp_path / "data.npz"), "targets": 12, "shadows": 60, "fixed": 30},
        "victim": {"steps": 5},
        "machine": {"threads": 1, "chunk": 4},
    }


def test_a_clock_ends_work_where_it_says_how_far_it_is():
    clock = Clock(silent)
    clock("stage", 0, 1)
    clock.allow(0.0)
    with pytest.raises(OutOfTime, match=TOO_LATE):
        clock("stage", 0, 1)
    clock("stage", 1, 1)  # is done: nothing is gained by ending it
    clock.allow(None)
    assert stopped(clock, KeyboardInterrupt()) == BY_HAND
    with pytest.raises(OutOfTime, match="Ctrl-C"):
        clock("stage", 0, 1)


def test_who_has_no_clock_just_ends():
    with pytest.raises(KeyboardInterrupt):
        stopped(silent, KeyboardInterrupt())


@pytest.fixture
def slow(monkeypatch):
    """Rows that are planned as free, and whose models never end."""
    rows = TrainingCase.rows
    monkeypatch.setattr(
        TrainingCase, "rows", lambda case: [replace(row, seconds=0.0) for row in rows(case)]
    )
    monkeypatch.setattr(Clock, "left", property(lambda _: 0.0))


def test_where_the_budget_ends_the_rest_is_written_and_the_next_command_named(
    brief, slow, tmp_path, monkeypatch
):
    allow = Clock.allow
    monkeypatch.setattr(Clock, "allow", lambda clock, _: allow(clock, 0.0))
    done = exhume.audit({**brief, "budget": {"time": "60s"}}, tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert TOO_LATE in done.verdict.sentence
    assert "--targets 50 --shadows 60 --budget 3m" in done.result.next
    assert "would show" not in done.result.next  # nothing was lined up to tell it by
    assert done.report.exists()


def test_after_ctrl_c_the_report_draws_what_there_is(brief, tmp_path, monkeypatch):
    stages = []

    def hit(stage, at, of):
        stages.append(stage)
        if stage == "training shadow models":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exhume.audit(brief, tmp_path / "run", progress=hit)
    left = read_result(tmp_path / "run" / "result.json")
    assert {one.spec.id: one.status.reason for one in left.attacks}[CLOSED_FORM.id] == BY_HAND
    assert left.next == "the same command goes on from where it was stopped"
    assert draw(tmp_path / "run").exists()
    whole = exhume.audit(brief, tmp_path / "run")
    assert whole.result.strongest is not None


def stand_in(case, rung, **section):
    """A judged audit of this case in which a rung was tried and nothing works."""
    lineup = LineupRow(1, 12, 20, 0.05, 0.4, needed=5, detectable=0.6)
    spec = Section(CLOSED_FORM, Status(Outcome.CONVERGED), release=case.title, lineup=lineup)
    findings = Findings(replace(spec, **section), not_audited("nothing was shown"))
    control = ControlRow(case.title, CLOSED_FORM.id, "times", "16", "", note=rung, targets=12)
    return Judged([findings], {}, controls=(control,))


def test_what_was_tried_in_vain_is_tried_with_more_as_far_as_records_go(brief):
    read = Brief.from_mapping(brief).resolved()
    case = read_training(read, lambda *_: readers.load(brief["data"]["source"]))
    case = case.resolved(read.with_settings(case.settings), NullStore())
    next_one = partial(next_step, case, budget=60.0, tests=4)
    said = next_one(stand_in(case, ""))
    assert said.startswith("the same command with --targets 50 --shadows 240 --budget 1m")
    assert said.endswith("50 targets would show a leak of 27% or more")
    assert "--shadows 60 " in next_one(stand_in(case, TOO_LATE))
    assert next_one(stand_in(case, "", doubt="it did not converge")) == ""
    full = replace(case, settings=case.settings.with_values("data", shadows=400))
    assert next_step(full, stand_in(full, ""), budget=None, tests=4).startswith("give more records")
