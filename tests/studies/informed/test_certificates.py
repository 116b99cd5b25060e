"""The study of certificates: what rings the alarm, what does not, and the whole of it in small."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from exhume.bounds.dp_sgd import gaussian
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, VictimSettings
from exhume.studies import run_study
from exhume.studies.arms import Bench
from exhume.studies.claims import Words, claims_of
from exhume.studies.framework import Run, RunOptions
from exhume.studies.informed.certificates import (
    DRAWS,
    NAMES,
    STEPS,
    STUDY,
    Level,
    Setting,
    judge,
    judge_sampled,
    levels_of,
    play_level,
)

STEPS_TAKEN, CLIP = 10, 0.5
NOISE = math.sqrt(STEPS_TAKEN) / 1.0  # bound: Phi(Phi^-1(1/10) + 1) = 39%


@pytest.fixture
def played(tmp_path):
    """A function: what is stated and what is run, which differ by clip, noise or sampling, to a level."""

    def play(sigma: float, rate: float, trials: int, **broken: float) -> Level:
        sizes = DataSettings("digits", fixed=30, targets=10, shadows=60, public=1, test=50)
        victim = VictimSettings(
            hidden=(6,), steps=STEPS_TAKEN, rate=0.1, momentum=0.5, dp_clip=CLIP
        )
        setting = Setting(sizes, victim, (), trials, (), eta=0.01)
        study = replace(STUDY, scales={"smoke": setting})
        run = Run(study, "smoke", RunOptions(), RunFolder.create(tmp_path / "run"), 1)
        stated = replace(victim, dp_noise=sigma, dp_sampling=rate)
        bench = Bench.of(run, sizes, stated)
        recipe = bench.recipe
        actual = replace(recipe, privacy=replace(recipe.privacy, **broken))
        return levels_of([play_level(bench, setting, actual)])[0]

    return play


def claims_about(group, said):
    """Of one of the two groups of levels; the other says nothing."""
    nothing = {"alarms": 0, "alarmed": "", "share": 1.0, "near": ""}
    values = {"full": nothing, "sampled": nothing} | {group: said}
    claims = claims_of("certificates", Words.of("certificates", None, values))
    own = ("no-alarm", "near", "final-weights")
    if group == "sampled":
        own = ("no-alarm-sampled", "near-sampled", "hidden-draws")
    return {name: claims[name] for name in own if name in claims}


def test_sound_training_rings_no_alarm(played):
    level = played(NOISE, 1.0, 150)
    said = judge([level])
    assert (claims_about("full", said)["no-alarm"][-1], said["alarms"]) == (True, 0)
    assert level.naming(STEPS).low > 0.1  # and yet it is attacked


@pytest.mark.parametrize(
    "broken",
    [
        {"noise": NOISE / 5},  # a fifth of the noise
        {"noise": 0.0},  # left out
        {"clip": 10 * CLIP, "noise": NOISE / 10},  # the stated noise, but records clipped too late
    ],
    ids=["less noise", "no noise", "clipping"],
)
def test_a_broken_mechanism_rings_it(broken, played):
    level = played(NOISE, 1.0, 150, **broken)
    assert level.naming(STEPS).alarm
    said = judge([level])
    *_, measured, holds = claims_about("full", said)["no-alarm"]
    assert not holds
    assert said["alarms"] >= 1
    assert NAMES[STEPS] in measured
    assert "the implementation of the private training is wrong" in measured


def level(noise: float, bound: float, every: int, last: int) -> Level:
    numbers = {
        "rate": 1.0,
        "noise": noise,
        "epsilon": 1.0,
        "trials": 100,
        "test_accuracy": 0.5,
        "kappa_low.within": 0.1,
        "kappa.naming": 0.1,
        "kappa.within": 0.1,
        "bound.naming": bound,
        "bound.within": bound,
        "every_step.naming": every,
        "final_weights.naming": last,
        "noise_aware.naming": 0,
        "closed_form.naming": 0,
        "noise_aware.within": 0,
        "closed_form.within": 0,
    }
    return levels_of([numbers])[0]


def test_claims_are_decided_by_the_numbers():
    def holds(*levels: Level) -> list[bool | None]:
        return [holds for *_, holds in claims_about("full", judge(levels)).values()]

    assert holds(level(5.0, 0.5, 45, 10)) == [True, True, True]
    assert holds(level(5.0, 0.5, 45, 10), level(1.0, 0.9, 50, 10)) == [True, False, True]
    assert holds(level(5.0, 0.5, 45, 40)) == [True, True, None]
    assert holds(level(5.0, 0.1, 60, 60)) == [False, True, None]
    assert holds(level(0.1, 1.0, 100, 100)) == [True, True]  # a bound of 1 tells nothing apart


# Poisson sampling

RATE, SIGMA = 0.25, 0.8  # 10 steps: 48% are allowed


def test_sound_sampling_rings_no_alarm(played):
    level = played(SIGMA, RATE, 200)
    said = judge_sampled([level])
    assert (claims_about("sampled", said)["no-alarm-sampled"][-1], said["alarms"]) == (True, 0)
    drawn = level.naming(DRAWS)
    assert 0.2 < drawn.low < drawn.rate < drawn.bound  # and yet it is attacked
    assert drawn.bound < gaussian(0.1, SIGMA, STEPS_TAKEN)  # and sampling is what lowers the bound


@pytest.mark.parametrize(
    "broken", [{"sampling": 1.0}, {"noise": SIGMA / 5}], ids=["everybody drawn", "less noise"]
)
def test_broken_sampling_rings_it(broken, played):
    level = played(SIGMA, RATE, 200, **broken)
    assert level.naming(DRAWS).alarm
    said = judge_sampled([level])
    *_, measured, holds = claims_about("sampled", said)["no-alarm-sampled"]
    assert not holds
    assert said["alarms"] >= 1
    assert "every step and the others' draws at rate 0.25, noise 0.8" in measured


def test_claims_about_samples_are_decided_by_the_numbers():
    def holds(known: int, hidden: int) -> list[bool | None]:
        numbers = {"rate": 0.1, "noise": 1.0, "epsilon": 1.0, "test_accuracy": 0.5, "trials": 100}
        numbers |= {"kappa.naming": 0.1, "bound.naming": 0.5, "final_weights.naming": 10}
        numbers |= {"draws_known.naming": known, "draws_hidden.naming": hidden}
        said = judge_sampled(levels_of([numbers]))
        return [holds for *_, holds in claims_about("sampled", said).values()]

    assert holds(45, 10) == [True, True, True]
    assert holds(30, 29) == [True, False, None]
    assert holds(80, 80) == [False, True, None]


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("certificates", "smoke", tmp_path / "run")
    metrics = result.metrics
    assert metrics["alarms"] == 0
    assert metrics["noise_0.1.every_step.naming"] == 1.0  # so little noise hides nothing
    assert metrics["noise_4.every_step.naming"] < metrics["noise_4.bound.naming"] + 0.2
    assert metrics["noise_4.closed_form.naming"] < metrics["noise_0.1.closed_form.naming"]
    assert metrics["alarms_sampled"] == 0
    assert metrics["rate_0.5.noise_1.draws_known"] > 0.1
    assert len(result.charts) == 4
    again = run_study("certificates", "smoke", tmp_path / "run")  # from what the folder keeps
    assert again.metrics == metrics
