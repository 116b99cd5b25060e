from __future__ import annotations

import pytest

from exhume.studies import run_study


@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("through-training", "smoke", tmp_path / "run")
    metrics = result.metrics
    for arm in ("mlp.minibatch", "finetune", "two_records"):
        assert metrics[f"{arm}.exact"] == 1
        assert metrics[f"{arm}.label_accuracy"] == 1
        assert metrics[f"{arm}.residual"] < 1e-3
    assert metrics["mlp.minibatch.targets"] == 2
    claims = {claim.id: claim for claim in result.claims}
    assert set(claims) == {"mlp-minibatch", "finetune", "two-records"}
    assert all(claim.holds for claim in claims.values())
    assert "100% of 2 at MSE ≤ 1e-06, |D-| = 60" in claims["finetune"].measured
