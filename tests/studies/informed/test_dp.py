from __future__ import annotations

import pytest
import torch

from exhume.studies import run_study
from exhume.studies.claims import Words, claims_of
from exhume.studies.informed.sweeps import Pooled
from exhume.studies.informed.varied import judge_privacy

EPSILONS = (1.0, 100.0, 10_000.0)


def arm(successes: int, accuracy: float) -> Pooled:
    errors = torch.full((100,), 0.02, dtype=torch.float64)
    return Pooled(errors, (0.02, 0.02), {"test_accuracy": accuracy}, successes, 1, 100)


def found(plain: list[int], aware: list[int], *, bare: int = 95, accuracy: float = 0.8):
    """successes of 100 at each epsilon; the accuracy is that at epsilon 100."""
    arms = {"none": arm(bare, 0.8), "clip_only": arm(90, 0.8)}
    for epsilon, one, other in zip(EPSILONS, plain, aware, strict=True):
        right = accuracy if epsilon == 100 else 0.8
        arms[f"epsilon_{epsilon:.0f}"] = arm(one, right)
        arms[f"epsilon_{epsilon:.0f}.noise_aware"] = arm(other, right)
    metrics, said = judge_privacy(arms, EPSILONS)
    claims = claims_of("informed-dp", Words.of("informed-dp", None, metrics | said))
    holds = {name: claim[-1] for name, claim in claims.items()}
    return holds, metrics["largest_epsilon_without_leak"]


def test_the_largest_epsilon_below_which_nothing_leaks_decides():
    holds, safe = found([1, 1, 60], [1, 1, 60])
    assert holds == {"without": True, "stops": True, "noise-aware": False, "cost": True}
    assert safe == 100
    assert found([1, 60, 60], [1, 60, 60])[0]["stops"] is False
    assert found([1, 60, 1], [1, 1, 1])[1] == 1  # a leak below is a leak
    holds, safe = found([60, 60, 60], [60, 60, 60])
    assert (holds["stops"], safe, "cost" in holds) == (False, 0, False)


def test_one_attack_that_sees_through_the_noise_is_enough():
    holds, safe = found([1, 1, 1], [1, 60, 60])
    assert safe == 1
    assert holds["noise-aware"]
    assert not holds["stops"]


def test_accuracy_lost_and_an_attack_that_never_worked_are_said():
    assert found([1, 1, 60], [1, 1, 60], accuracy=0.6)[0]["cost"] is False
    assert found([1, 1, 60], [1, 1, 60], bare=2)[0]["without"] is None


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-dp", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    assert metrics["none.success_low"] > metrics["none.null_success_high"]
    assert metrics["epsilon_1.mse"] > 1.5 * metrics["none.mse"]
    assert metrics["epsilon_1.success_low"] <= metrics["epsilon_1.null_success_high"]
    aware, plain = (metrics[f"epsilon_1000000{end}.mse"] for end in (".noise_aware", ""))
    assert max(aware, plain) < metrics["mean_record.mse"]
    assert metrics["none.test_accuracy"] > metrics["epsilon_1.test_accuracy"]
    assert metrics["epsilon_1.noise_multiplier"] > metrics["epsilon_1000000.noise_multiplier"] > 0
    assert len(result["charts"]) == 3
