"""Budgets hold: what is finished in time is judged and written, whatever the estimates were."""

from dataclasses import replace

import numpy as np
import pytest

import exhume
from exhume.auditing.kinds.training import CLOSED_FORM, TrainingCase
from exhume.auditing.plan import BY_HAND, TOO_LATE, Clock, stopped
from exhume.core.contract import silent
from exhume.core.errors import OutOfTime
from exhume.core.results import read_result
from exhume.report.page import draw


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
