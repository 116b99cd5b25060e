from __future__ import annotations

import pytest
import torch

from exhume.core.contract import Key
from exhume.studies import run_study
from exhume.studies.claims import Words, claims_of
from exhume.studies.informed.sweeps import Pooled
from exhume.studies.informed.varied import PAPER, judge_activations

TRIED = {"relu", "elu", "identity"}


def planted(errors: dict[str, float], noise: float) -> dict[str, Pooled]:
    """Arms whose targets share most of their variation, as targets do."""
    generator = Key.from_seed(1).generator()
    common = torch.randn(100, generator=generator) * 0.01
    arms = {}
    for name, mean in errors.items():
        own = mean + common + noise * torch.randn(100, generator=generator)
        arms[name] = Pooled(own.double(), (0.0, 0.0), {}, 0, 0, 100)
    return arms


def held(arms: dict[str, Pooled]) -> dict[str, bool | None]:
    found, said = judge_activations(arms, Key.from_seed(0))
    words = Words.of("informed-activations", None, found | said)
    return {name: claim[-1] for name, claim in claims_of("informed-activations", words).items()}


def test_the_papers_own_numbers_hold_in_spite_of_targets_that_vary_more_than_the_gap():
    assert held(planted(PAPER, 0.001)) == {"relu": True, "close": True}


def test_one_other_activation_as_bad_as_relu_is_enough_to_refute():
    assert held(planted({**PAPER, "floor": 0.0182}, 0.001)) == {"relu": None, "close": False}
    assert held(planted({**PAPER, "celu": 0.0002}, 0.001)) == {"relu": True, "close": False}


def test_a_difference_within_the_noise_proves_nothing():
    assert held(planted({**PAPER, "relu": 0.0098}, 0.01))["relu"] is None


def test_reconn_is_judged_where_it_was_run_and_is_no_activation_of_its_own():
    errors = {**PAPER, "relu.reconn": 0.02, "elu.reconn": 0.01, "leaky-relu.reconn": 0.012}
    both = {"relu": True, "close": True}
    assert held(planted(errors, 0.001)) == {**both, "reconn": True}
    assert held(planted({**errors, "elu.reconn": 0.03}, 0.001)) == {**both, "reconn": False}


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("informed-activations", "smoke", tmp_path / "run").to_json()
    metrics, chart = result["metrics"], result["charts"][0]
    assert set(chart["series"]) >= {"closed form", "RecoNN in the paper"}
    assert {point["x"] for point in chart["series"]["closed form"]} == TRIED
    for name in TRIED:
        assert metrics[f"{name}.mse"] < metrics["mean_record.mse"]
        assert metrics[f"{name}.success_low"] > metrics[f"{name}.null_success_high"]
    assert metrics["relu.mse"] > metrics["elu.mse"]
