"""The defence and the search at smoke scale: their metrics, and that a killed study goes on as it was."""

from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.slow
def test_defence_smoke(tmp_path):
    result = run_study("margin-defence", "smoke", tmp_path / "run")
    metrics = result.metrics
    names = {claim.id for claim in result.claims}
    assert names == {"protected", "enough", "margin-not-random", "all", "white", "early"}
    for arm in ("none", "white.all.2", "record.margin.2", "record.random.2", "early"):
        assert metrics[f"{arm}.good"] == pytest.approx(
            metrics[f"{arm}.good_chosen"] + metrics[f"{arm}.good_others"]
        )
        assert 0 <= metrics[f"{arm}.test_accuracy"] <= 1
    assert metrics["record.all.2.residual_at_truth"] > metrics["none.residual_at_truth"]
    assert len(result.charts) == 2
    assert [section.ranked_by for section in result.attacks] == ["ssim"] * 3
    assert "Just above 0.4" in (tmp_path / "run" / "report.html").read_text()
    assert run_study("margin-defence", "smoke", tmp_path / "run").metrics == metrics


@pytest.mark.slow
def test_search_smoke_killed_and_resumed(tmp_path):
    whole = run_study("margin-search", "smoke", tmp_path / "whole")
    metrics = whole.metrics
    assert metrics["good_worst"] <= metrics["good_random"] <= metrics["good_sighted"]
    assert metrics["good_worst"] <= metrics["good_blind"] <= metrics["good_sighted"]
    assert metrics["settings"] == 4
    assert {claim.id for claim in whole.claims} == {
        "close",
        "better-than-random",
        "agreement",
        "residual",
        "published",
    }
    for stage in ("search, 8 steps", "settings in full"):
        with pytest.raises(KeyboardInterrupt):
            run_study("margin-search", "smoke", tmp_path / "killed", progress=_stop_at(stage, 2))
    again = run_study("margin-search", "smoke", tmp_path / "killed")

    def timeless(result):
        return {n: v for n, v in result.metrics.items() if "seconds" not in n}

    assert timeless(again) == timeless(whole)
    assert again.claims == whole.claims


def _stop_at(stage, when):
    def stop(current, done, total):
        if stage in current and done == when:
            raise KeyboardInterrupt

    return stop
