"""The study of estimates: what counts as right, and its smoke run."""

from __future__ import annotations

import pytest

from exhume.studies.framework import RunOptions, run_study
from exhume.studies.verdict import estimates


@pytest.mark.parametrize(
    ("planned", "took", "right"),
    [
        (10, 20, True),
        (10, 20.1, False),
        (10, 5, True),
        (10, 4.9, False),
        (0.1, 0.9, True),
        (0.1, 1.1, False),
    ],
)
def test_within_half_and_twice_the_plan(planned, took, right):
    assert estimates.within(planned, took) == right


def test_claim(claims_turn, claimed):
    claims_turn(
        lambda metrics: claimed("estimates", metrics),
        {"within": 18.0, "audits": 20.0, "share": 0.9},
        ("within", {"share": 0.89}),
    )


@pytest.mark.slow
def test_three_systems_are_planned_and_timed(tmp_path):
    result = run_study(estimates.STUDY, "smoke", tmp_path, RunOptions())
    assert result.metrics["audits"] == 3
    assert result.metrics["mlp 0.took"] > 0
    assert not any((tmp_path / "audits").iterdir())
