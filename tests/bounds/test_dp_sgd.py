"""DP-SGD's bound against closed forms, an independent accountant, and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve
from scipy.stats import norm

from exhume.bounds.dp_sgd import _grid, _largest, _one_step, compose, dp_sgd, gaussian
from exhume.core.contract import ExhumeError

KAPPAS = (1e-4, 1e-3, 0.01, 0.125, 0.5, 0.9)
# noise multiplier, steps, sampling rate
OF_STUDY = [(1.0, 50, 0.01), (1.0, 50, 0.1), (1.0, 50, 0.5)]  # steps of the study of certificates
CASES = [(1.0, 100, 0.1), (0.6, 50, 0.02), (2.0, 1000, 0.3), (5.0, 100, 0.99), (1.0, 1, 0.5)]


@pytest.fixture(autouse=True)
def fresh_grids():
    """A grid takes up to 32 MB, and thirty-two are kept."""
    yield
    _grid.cache_clear()


@pytest.mark.parametrize("noise", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("steps", [1, 100, 10_000])
def test_full_batches_have_the_closed_form(noise, steps):
    for kappa in KAPPAS:
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


ONE_STEP = [(1.0, 0.5), (0.6, 0.02), (5.0, 0.99), (2.0, 0.1)]


@pytest.mark.parametrize(("noise", "rate"), ONE_STEP)
def test_one_step_is_exact(noise, rate):
    """More of x tells more of the record: the best event of probability kappa is x > a threshold."""
    for kappa in (1e-6, *KAPPAS, 0.999):
        exact = (1 - rate) * kappa + rate * norm.cdf(norm.ppf(kappa) + 1 / noise)
        assert 1e-12 < dp_sgd(kappa, noise, 1, rate).gamma - exact < 1e-7


@pytest.mark.parametrize(("noise", "rate"), ONE_STEP)
def test_the_curve_of_one_step_is_the_true_one_at_every_point(noise, rate):
    """H(lambda) = mu(x > c) - lambda nu(x > c), and 2e-12 more for what lies beyond the window."""
    found = compose(noise, 1, rate)
    losses = found.losses[found.losses > math.log1p(-rate)]
    # the loss of x is log(1 - q + q exp((2x - 1) / 2s^2))
    x = noise**2 * np.log((np.exp(losses) - 1 + rate) / rate) + 0.5
    above = norm.sf(x / noise)
    exact = (1 - rate) * above + rate * norm.sf((x - 1) / noise) - np.exp(losses) * above
    extra = found.curve()[found.losses > math.log1p(-rate)] - exact
    assert 1e-12 < extra.min() < extra.max() < 3e-12


@pytest.mark.parametrize(("noise", "steps", "rate"), [(1.0, 3, 0.4), (2.0, 50, 0.1)])
def test_steps_are_convolved(noise, steps, rate):
    found = compose(noise, steps, rate)
    high = _largest(noise, steps, rate)
    one = _one_step(noise, rate, math.log1p(-rate), high, found.spacing)
    assert one.mass.sum() + one.infinite == pytest.approx(1, abs=1e-14)
    assert (one.mass * np.exp(-one.losses)).sum() == pytest.approx(1, abs=1e-11)  # under nu
    whole = one.mass
    for _ in range(steps - 1):
        whole = fftconvolve(whole, one.mass)
    at = np.arange(len(whole)) + steps * one.first - found.first
    inside = (at >= 0) & (at < len(found.mass))
    assert whole[~inside].sum() < 1e-12  # beyond the window
    np.testing.assert_allclose(found.mass[at[inside]], whole[inside], atol=1e-15)
    assert found.infinite == pytest.approx(2e-12 + steps * one.infinite, rel=1e-3, abs=0)
    assert steps * found.spacing**2 <= 1e-4


@pytest.mark.parametrize(("noise", "steps"), [(5.0, 100), (10.0, 500)])
def test_the_window_is_as_wide_as_it_must_be(noise, steps):
    """In full batches the loss is normal; Chernoff's bound is 1e-12 at sqrt(2 ln 1e12) = 7.434 deviations."""
    found = compose(noise, steps, 1 - 1e-9)
    mean, deviation = steps / (2 * noise**2), math.sqrt(steps) / noise
    ends = (found.losses[[0, -1]] - mean) / deviation
    assert (np.abs(ends) > 7.434).all()
    assert (np.abs(ends) < 7.47).all()
    highest = _largest(noise, steps, 1 - 1e-9)
    x = noise**2 * highest + 0.5
    assert steps * norm.sf((x - 1) / noise) == pytest.approx(2.5e-13, rel=1e-3, abs=0)


def test_as_many_points_as_are_needed():
    """The error goes with T h^2: 1e-4 is fine enough; where 4 million points leave more than 1e-2, none."""
    for noise, steps, rate, size in ((1.0, 50, 0.1, 1 << 16), (2.0, 1000, 0.3, 1 << 18)):
        found = compose(noise, steps, rate)
        assert len(found.mass) == size
        assert steps * found.spacing**2 <= 1e-4
    assert compose(0.05, 300, 0.5) is None
    assert compose(0.005, 1, 0.1) is None  # one step has too many points


@pytest.mark.parametrize(
    ("noise", "steps", "rate"),
    [
        *CASES,
        *(OF_STUDY[1:2]),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in OF_STUDY[::2]),
    ],
)
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


def test_very_little_noise_is_hardly_better_than_none():
    found = dp_sgd(0.1, 1e-4, 50, 1e-2)
    assert found.method == "without a grid"
    missed = (1 - 1e-2) ** 50
    exact = 1 - missed + 0.1 * missed  # taken once, the record is certain to be seen
    assert found.gamma == pytest.approx(exact)


def test_little_noise_tends_to_none():
    missed = 0.9**10
    exact = 1 - missed + 0.1 * missed
    assert dp_sgd(0.1, 0.0, 10, 0.1).gamma == pytest.approx(exact)
    assert dp_sgd(0.1, 0.03, 10, 0.1).gamma == pytest.approx(exact, abs=2e-3)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_without_steps_or_sampling_nothing_is_learned(kappa):
    assert dp_sgd(kappa, 1.0, 0).gamma == dp_sgd(kappa, 1.0, 5, 0.0).gamma == kappa


def test_extremes():
    assert (gaussian(0.5, 0.0), gaussian(0.0, 1.0), gaussian(1.0, 1.0)) == (1.0, 0.0, 1.0)
    assert dp_sgd(0.0, 1.0, 10, 0.5).gamma < 1e-10
    assert dp_sgd(1.0, 1.0, 10, 0.5).gamma == 1.0


NOISES, RATES, STEPS = st.floats(0.3, 20), st.floats(0.001, 0.999), st.integers(1, 300)
SLACK = 1e-3  # of the chords


@settings(max_examples=10)
@given(st.floats(1e-4, 1), st.floats(1e-4, 1), NOISES, STEPS, RATES)
def test_monotone_in_kappa_and_within_range(first, second, noise, steps, rate):
    less, more = sorted((first, second))
    _grid.cache_clear()
    low, high = (dp_sgd(kappa, noise, steps, rate).gamma for kappa in (less, more))
    assert less <= low <= high <= 1
    assert low <= gaussian(less, noise, steps) + SLACK  # seeing the record less often helps
    rho = steps / (2 * noise**2)  # zero-concentrated DP of the composed Gaussian
    far = max(0.0, math.sqrt(-math.log(less)) - math.sqrt(rho))
    assert low <= math.exp(-(far**2)) + SLACK


@settings(max_examples=8)
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
        (lambda k: dp_sgd(0.1, -1.0, 1), "noise: -1.0 given, a finite number of 0 or more needed"),
    ],
)
def test_refusals(call, message, key):
    with pytest.raises(ExhumeError) as caught:
        call(key)
    assert str(caught.value) == message
