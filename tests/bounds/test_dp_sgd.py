"""DP-SGD's bound against closed forms, an independent accountant, and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from exhume.bounds.dp_sgd import _grid, dp_sgd, gaussian
from exhume.bounds.guarantees import zcdp
from exhume.bounds.loss_grid import compose
from exhume.bounds.sampled import sample_bound
from exhume.contract import ExhumeError

KAPPAS = (1e-4, 1e-3, 0.01, 0.125, 0.5, 0.9)
# noise multiplier, steps, sampling rate
OF_STUDY = [(1.0, 50, 0.01), (1.0, 50, 0.1), (1.0, 50, 0.5)]  # steps of the study of certificates
CASES = [(1.0, 100, 0.1), (0.6, 50, 0.02), (2.0, 1000, 0.3), (5.0, 100, 0.99), (1.0, 1, 0.5)]


@pytest.mark.parametrize("noise", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("steps", [1, 100, 10_000])
@pytest.mark.parametrize("kappa", KAPPAS)
def test_full_batches_have_the_closed_form(noise, steps, kappa):
    expected = norm.cdf(norm.ppf(kappa) + math.sqrt(steps) / noise)
    found = dp_sgd(kappa, noise, steps)
    assert found.method == "closed form"
    assert found.gamma == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("noise", "gamma"), [(40.0, 0.184), (9.5, 0.461), (5.0, 0.802)])
def test_published_values(noise, gamma):
    assert gaussian(1 / 8, noise, 100) == pytest.approx(gamma, abs=5e-4)


@pytest.mark.parametrize(
    ("noise", "steps", "rate", "exact"),
    [(5.0, 100, 1 - 1e-9, 1e-5), (2.0, 50, 1 - 1e-12, 1e-6), (10.0, 50, 1 - 1e-12, 1e-6)],
)
def test_the_grid_gives_the_closed_form_near_full_batches(noise, steps, rate, exact):
    found = compose(noise, steps, rate)
    assert found is not None
    for kappa in KAPPAS:
        assert found.gamma(kappa) == pytest.approx(gaussian(kappa, noise, steps), abs=exact)


@pytest.mark.parametrize(("noise", "steps", "rate"), [*CASES, *OF_STUDY])
def test_agrees_with_the_trade_off_curve_of_another_library(noise, steps, rate):
    """riskcal's T(P, Q) with P = mu, with the record: its alpha is nu's mass, so gamma = 1 - beta."""
    pytest.importorskip("riskcal", reason="riskcal is not installed: pip install 'exhume[test]'")
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
    from riskcal.analysis import get_beta_from_pld
    from riskcal.analysis._plrv import _tradeoff_function
    from riskcal.analysis.conversions import pld_to_plrvs

    losses = from_gaussian_mechanism(
        noise, value_discretization_interval=5e-4, sampling_prob=rate
    ).self_compose(steps)
    ours = np.array([dp_sgd(kappa, noise, steps, rate).gamma for kappa in KAPPAS])
    one_way = 1 - _tradeoff_function(pld_to_plrvs(losses), np.array(KAPPAS))
    np.testing.assert_allclose(ours, one_way, atol=1e-3)
    symmetric = 1 - get_beta_from_pld(losses, alpha=np.array(KAPPAS))
    assert (symmetric >= ours - 1e-3).all()  # never tighter
    if (steps, rate) == (1, 0.5):
        assert (symmetric > ours + 0.01).any()  # the direction matters


@pytest.mark.parametrize(("noise", "steps", "rate"), [(0.7, 3, 0.4), (2.0, 20, 0.3)])
def test_naive_monte_carlo(noise, steps, rate):
    """The definition: the threshold that nu exceeds with kappa, and how often mu exceeds it."""
    random, draws, kappa = np.random.default_rng(0), 100_000, 0.1
    without = random.normal(0, noise, (draws, steps))
    present = random.random((draws, steps)) < rate
    with_record = random.normal(0, noise, (draws, steps)) + present

    def ratio(x):
        return np.prod(1 - rate + rate * np.exp((2 * x - 1) / (2 * noise**2)), axis=1)

    gamma = np.mean(ratio(with_record) > np.quantile(ratio(without), 1 - kappa))
    assert dp_sgd(kappa, noise, steps, rate).gamma == pytest.approx(gamma, abs=0.01)


@pytest.mark.parametrize(("noise", "steps", "rate"), [*CASES[:2], *OF_STUDY])
@pytest.mark.parametrize("kappa", [1e-3, 0.01, 0.1, 0.5])
def test_the_sampled_interval_holds_the_truth(noise, steps, rate, kappa, key):
    found = sample_bound(kappa, noise, steps, rate, key=key, draws=20_000, level=0.999)
    truth = dp_sgd(kappa, noise, steps, rate).gamma
    assert found.low <= truth <= found.high
    assert found.low <= found.gamma <= found.high
    assert found.high - found.low < (0.1 if kappa > 0.001 else 0.3)  # 20 draws above the threshold


def test_the_sampled_interval_is_as_sure_as_it_says(key):
    truth, level, rounds = gaussian(0.1, 1.0), 0.8, 150
    drawn = [
        sample_bound(0.1, 1.0, 1, key=key.fold(i), draws=500, level=level) for i in range(rounds)
    ]
    held = sum(one.low <= truth <= one.high for one in drawn)
    assert held >= level * rounds


def test_a_kappa_too_small_for_the_draws_is_no_bound_at_all(key):
    found = sample_bound(1e-6, 1.0, 1, key=key, draws=100)
    assert (found.low, found.high > 0.02) == (1e-6, True)


def test_very_little_noise_is_sampled():
    found = dp_sgd(0.1, 1e-4, 50, 1e-2)
    assert found.method == "Monte Carlo"
    missed = (1 - 1e-2) ** 50
    exact = 1 - missed + 0.1 * missed  # taken once, the record is certain to be seen
    assert exact <= found.gamma < exact + 0.02


def test_little_noise_tends_to_none():
    assert dp_sgd(0.1, 0.03, 10, 0.1).gamma == pytest.approx(
        dp_sgd(0.1, 0.0, 10, 0.1).gamma, abs=2e-3
    )


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_without_steps_or_sampling_nothing_is_learned(kappa):
    assert dp_sgd(kappa, 1.0, 0).gamma == dp_sgd(kappa, 1.0, 5, 0.0).gamma == kappa


def test_extremes():
    assert (gaussian(0.5, 0.0), gaussian(0.0, 1.0), gaussian(1.0, 1.0)) == (1.0, 0.0, 1.0)
    assert dp_sgd(0.0, 1.0, 10, 0.5).gamma < 1e-10
    assert dp_sgd(1.0, 1.0, 10, 0.5).gamma == 1.0


NOISES, RATES, STEPS = st.floats(0.3, 20), st.floats(0.001, 0.999), st.integers(1, 300)
SLACK = 1e-3  # of the chords


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-4, 1), st.floats(1e-4, 1), NOISES, STEPS, RATES)
def test_monotone_in_kappa_and_within_range(first, second, noise, steps, rate):
    less, more = sorted((first, second))
    low, high = (dp_sgd(kappa, noise, steps, rate).gamma for kappa in (less, more))
    assert less <= low <= high <= 1
    assert low <= gaussian(less, noise, steps) + SLACK  # seeing the record less often helps
    assert low <= zcdp(less, steps / (2 * noise**2)) + SLACK


@settings(max_examples=20, deadline=None)
@given(
    st.floats(1e-3, 0.9), NOISES, STEPS, RATES, st.floats(1, 3), st.sampled_from(["s", "T", "q"])
)
def test_monotone_in_noise_steps_and_rate(kappa, noise, steps, rate, factor, which):
    base = dp_sgd(kappa, noise, steps, rate).gamma
    if which == "s":
        assert dp_sgd(kappa, noise * factor, steps, rate).gamma <= base + SLACK
    elif which == "T":
        assert dp_sgd(kappa, noise, math.ceil(steps * factor), rate).gamma >= base - SLACK
    else:
        assert dp_sgd(kappa, noise, steps, min(1.0, rate * factor)).gamma >= base - SLACK
    _grid.cache_clear()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k: gaussian(-0.1, 1.0), "kappa: -0.1 given, a probability from 0 to 1 is needed"),
        (
            lambda k: gaussian(0.1, math.inf),
            "noise: inf given, a finite number of 0 or more needed",
        ),
        (lambda k: dp_sgd(0.1, 1.0, -1), "steps: -1 given, at least 0 needed"),
        (
            lambda k: dp_sgd(0.1, 1.0, 1, 1.5),
            "rate: 1.5 given, a probability from 0 to 1 is needed",
        ),
        (
            lambda k: sample_bound(0.1, 0.0, 1, key=k),
            "noise 0.0, steps 1 and draws 100000 must all be above 0 to be sampled",
        ),
        (
            lambda k: sample_bound(0.1, 1.0, 1, 0.0, key=k),
            "rate: 0.0 given, a probability above 0 is needed to be sampled",
        ),
    ],
)
def test_refusals(call, message, key):
    with pytest.raises(ExhumeError) as caught:
        call(key)
    assert str(caught.value) == message
