from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("versions", "smoke", tmp_path / "run")
    assert {claim.id: claim.holds for claim in result.claims}["exact"]
    metrics = result.metrics
    assert metrics["ridge.remaining.exact"] == 5
    assert metrics["ridge.difference.mse"] < metrics["ridge.difference.never_saw_mse"]
    assert (tmp_path / "run" / "report.html").exists()
