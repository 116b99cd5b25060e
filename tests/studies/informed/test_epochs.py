from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from exhume.core.contract import Key
from exhume.studies.claims import Words, claims_of
from exhume.studies.informed.sweeps import Pooled
from exhume.studies.informed.varied import judge_lengths


def planted(errors: dict[int, float]) -> dict[int, Pooled]:
    common = 0.01 * torch.randn(60, generator=Key.from_seed(1).generator()).double()
    return {
        steps: Pooled(mean + common, (0.0, 0.0), {}, 50, 1, 60) for steps, mean in errors.items()
    }


def held(errors: dict[int, float]) -> dict[str, bool | None]:
    arms = planted(errors)
    found, said = judge_lengths(arms, Key.from_seed(0))
    found |= {f"steps_{steps}.mse": arm.mse for steps, arm in arms.items()}
    claims = claims_of("informed-epochs", Words.of("informed-epochs", None, found | said))
    return {name: claim[-1] for name, claim in claims.items()}


def test_growth_over_all_and_at_every_increase_are_two_claims():
    rising = held({1: 0.01, 10: 0.02, 100: 0.03})
    assert rising["grows"]
    assert rising["everywhere"]
    bent = held({1: 0.01, 10: 0.03, 100: 0.02})
    assert bent["grows"]
    assert not bent["everywhere"]
    assert not held({1: 0.03, 10: 0.02, 100: 0.01})["grows"]


def test_the_jump_is_judged_only_where_it_was_looked_for():
    assert "jump" not in held({1: 0.01, 300: 0.02})
    assert held({1: 0.01, 230: 0.02, 260: 0.04})["jump"]
    assert not held({1: 0.01, 230: 0.02, 260: 0.021})["jump"]


@pytest.mark.network
def test_smoke(tmp_path):
    """By the command, in a process of its own: the whole of MNIST is read."""
    words = ["study", "run", "informed-epochs", "--scale", "smoke", "--out", str(tmp_path / "run")]
    subprocess.run([sys.executable, "-m", "exhume", *words], check=True, capture_output=True)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    metrics = result["metrics"]
    assert {claim["id"] for claim in result["claims"]} == {"grows", "everywhere", "leaks"}
    for steps in (1, 10, 60):
        assert metrics[f"steps_{steps}.mse"] < metrics["mean_record.mse"]
    assert metrics["steps_60.test_accuracy"] > metrics["steps_1.test_accuracy"]
    assert len(result["charts"]) == 2
    assert any("jump near 240" in deviation for deviation in result["deviations"])
