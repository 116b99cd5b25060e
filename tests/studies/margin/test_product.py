"""The defence at smoke scale: its metrics, and that a study goes on where it was."""

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
