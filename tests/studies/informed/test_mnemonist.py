from __future__ import annotations

from types import SimpleNamespace

import pytest

from exhume.studies import run_study
from exhume.studies.informed import mnemonist


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("mnemonist", "smoke", tmp_path / "run")
    metrics = result.metrics
    for width in (10, 12):
        for arm in mnemonist.ARMS:
            assert (
                0
                < metrics[f"width_{width}.{arm}.mse"]
                < metrics[f"width_{width}.{arm}.mae_plus_mse"]
            )
        read = {arm: metrics[f"width_{width}.{arm}.parameters_read"] for arm in mnemonist.ARMS}
        assert 0 < read["mnemonist"] < 0.6 * read["all"]
        assert read["random"] == pytest.approx(read["mnemonist"], rel=0.1)
        assert 0 < metrics[f"width_{width}.never_reached"] < 1
    assert len(result.claims) == 6
    assert (tmp_path / "run" / "report.html").exists()
    again = run_study("mnemonist", "smoke", tmp_path / "run")
    assert again.metrics == metrics


def test_a_claim_is_decided_by_the_interval_over_runs(claimed, key):
    def made(ours, all_, random, kept):
        arms = {"mnemonist": ours, "all": all_, "random": random}
        errors = {f"{arm}.mae_plus_mse": value for arm, value in arms.items()}
        return {**errors, "active_kept": kept, "active_dropped": 0.5}

    setting = SimpleNamespace(seeds=4)

    def judged(*runs):
        return claimed(
            "mnemonist", {"by_width": [mnemonist.compared(10, list(runs), key)]}, setting
        )

    claims = judged(made(0.8, 1.0, 1.0, 0.6), made(0.9, 1.0, 0.85, 0.7))
    assert [holds for *_, holds in claims.values()] == [True, None, True]
    measured = [measured for *_, measured, _ in claims.values()]
    assert measured[0] == "lower in 2 of 2 runs, by 15.0% on average (10.0% to 20.0%)"
    assert measured[1].startswith("lower in 1 of 2 runs")
    worse = made(1.1, 1.0, 1.0, 0.4), made(1.2, 1.0, 1.1, 0.3)
    assert [holds for *_, holds in judged(*worse).values()] == [False, False, False]
    setting.seeds = 2  # too few for a paper's claim to fail
    assert [holds for *_, holds in judged(*worse).values()] == [None, False, None]


def test_no_correlation_with_a_constant():
    import torch

    ramp = torch.arange(4.0)
    assert mnemonist._rank_correlation(ramp, ramp) == pytest.approx(1)
    assert mnemonist._rank_correlation(ramp, torch.ones(4)) == 0
