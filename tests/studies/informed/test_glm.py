from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-glm", "smoke", tmp_path / "run")
    holds = {claim.id: claim.holds for claim in result.claims}
    assert holds["exact"]
    assert holds["instant"]
    metrics = result.metrics
    assert metrics["largest_error"] == metrics["largest_error_1e-12"] <= 1e-5
    assert metrics["largest_error_1e-12"] < metrics["largest_error_1e-08"]
    assert metrics["sklearn_largest_error"] > metrics["largest_error"]
    assert (tmp_path / "run" / "report.html").exists()
