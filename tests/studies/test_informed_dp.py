from __future__ import annotations

import pytest
import torch

from exhume.studies import run_study
from exhume.studies.informed_dp import judge
from exhume.studies.sweeps import Pooled

EPSILONS = (1.0, 100.0, 10_000.0)


def planted(successes: dict[str, int], accuracies: dict[str, float]) -> dict[str, Pooled]:
    errors = torch.full((100,), 0.02, dtype=torch.float64)
    return {
        name: Pooled(
            errors, (0.02, 0.02), {"test_accuracy": accuracies.get(name, 0.8)}, count, 1, 100
        )
        for name, count in successes.items()
    }


def found(a: int, b: int, c: int, *, bare: int = 95, accuracy: float = 0.8):
    counts = {"epsilon_1": a, "epsilon_100": b, "epsilon_10000": c, "clip_only": 90, "none": bare}
    claims, metrics = judge(planted(counts, {"epsilon_100": accuracy}), EPSILONS)
    return {claim.id: claim.holds for claim in claims}, metrics["largest_epsilon_without_leak"]


def test_the_largest_epsilon_below_which_nothing_leaks_decides():
    assert found(1, 1, 60) == ({"without": True, "stops": True, "cost": True}, 100)
    assert found(1, 60, 60) == ({"without": True, "stops": False, "cost": True}, 1)
    assert found(1, 60, 1)[1] == 1  # a leak below is a leak
    assert found(60, 60, 60) == ({"without": True, "stops": False}, 0)


def test_accuracy_lost_and_an_attack_that_never_worked_are_said():
    assert found(1, 1, 60, accuracy=0.6)[0]["cost"] is False
    assert found(1, 1, 60, bare=2)[0]["without"] is False


@pytest.mark.network
def test_smoke(tmp_path):
    result = run_study("informed-dp", "smoke", tmp_path / "run")
    metrics = result["metrics"]
    assert metrics["none.success_low"] > metrics["none.null_success_high"]
    assert metrics["epsilon_1.mse"] > 1.5 * metrics["none.mse"]
    assert metrics["epsilon_1.success_low"] <= metrics["epsilon_1.null_success_high"]
    assert metrics["none.test_accuracy"] > metrics["epsilon_1.test_accuracy"]
    assert metrics["epsilon_1.noise_multiplier"] > metrics["epsilon_1000000.noise_multiplier"] > 0
    assert len(result["charts"]) == 3
