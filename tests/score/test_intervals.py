"""Intervals: exact ones against scipy's, drawn ones against loops over the same draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, spearmanr

from exhume.core.contract import ExhumeError, Key
from exhume.score.intervals import (
    Correlation,
    auc,
    bootstrap,
    clopper_pearson,
    clustered,
    detectable_rate,
    gap_over_spread,
    mean_auc,
    rank_correlation,
    rate_of,
    rate_reaching,
)


@settings(max_examples=40)
@given(st.integers(1, 300), st.data())
def test_clopper_pearson_equals_scipy(trials, data):
    successes = data.draw(st.integers(0, trials))
    expected = binomtest(successes, trials).proportion_ci(0.95, "exact")
    assert clopper_pearson(successes, trials) == pytest.approx(
        (expected.low, expected.high), abs=1e-9
    )


@pytest.mark.parametrize("level", [0.5, 0.999])
def test_clopper_pearson_at_other_levels(level):
    expected = binomtest(7, 20).proportion_ci(level, "exact")
    assert clopper_pearson(7, 20, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


def percentiles(means, level):
    return pytest.approx(tuple(np.quantile(means, [(1 - level) / 2, (1 + level) / 2])))


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_bootstrap_gives_the_percentiles_of_its_draws(key, level):
    values = torch.tensor([0.0, 1, 1, 0, 0.5, -2, 3])
    picks = torch.randint(7, (300, 7), generator=key.generator()).tolist()
    means = [sum(float(values[i]) for i in pick) / 7 for pick in picks]
    assert bootstrap(values, key, level=level, draws=300) == percentiles(means, level)


@pytest.mark.parametrize("values", [[-1.0, 0, 1], [2.0, 0, 1], [0.5, 1.5, 1], [0.0, 1.0, 1.0]])
def test_only_a_certain_share_has_the_exact_interval(key, values):
    """Sums of 0 and of 3 that are no shares, and a share that is not certain."""
    found = bootstrap(torch.tensor(values), key)
    assert found not in {clopper_pearson(successes, 3) for successes in range(4)}


def test_a_certain_share_at_another_level(key):
    assert bootstrap(torch.ones(20), key, level=0.5) == clopper_pearson(20, 20, 0.5)


def test_bootstrap_covers_a_known_mean(key):
    covered = 0
    for i in range(100):
        values = (torch.rand(80, generator=key.fold(i).generator()) < 0.3).double()
        low, high = bootstrap(values, key.fold("b", i), draws=500)
        covered += low <= 0.3 <= high
    assert covered >= 86  # of 94%, as it is narrow at this size, fewer have a probability of .1%


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_bootstrap_of_a_certain_share_is_not_a_point(key, value):
    low, high = bootstrap(torch.full((50,), value), key)
    assert (low, high) == clopper_pearson(int(50 * value), 50)
    assert high - low > 0.05


def nested(key, clients, shadows, images, spread=(0.3, 0.2, 0.1), mean=0.0):
    """Values with known deviations of clients, of shadows within clients, and of images."""
    shapes = ((clients, 1, 1), (clients, shadows, 1), (clients, 1, images))
    drawn = [
        s * torch.randn(shape, generator=key.fold(i).generator(), dtype=torch.float64)
        for i, (s, shape) in enumerate(zip(spread, shapes, strict=True))
    ]
    return mean + sum(drawn)


@pytest.mark.parametrize("level", [0.95, 0.5])
@pytest.mark.parametrize("against", [False, True])
def test_a_clustered_interval_is_that_of_its_definition(key, level, against):
    """Clients are drawn, then images and shadows within each; the other mean has shadows of its own."""
    one, draws = nested(key, 3, 2, 5), 200
    other = nested(key.fold("other"), 3, 4, 5)
    generator = key.generator()
    clients = torch.randint(3, (draws, 3), generator=generator).tolist()
    images = torch.randint(5, (draws, 3, 5), generator=generator).tolist()
    means = np.zeros(draws)
    for sign, array in ((1, one), (-1, other))[: 1 + against]:
        shape = (draws, 3, array.shape[1])
        shadows = torch.randint(array.shape[1], shape, generator=generator).tolist()
        table = array.tolist()
        for d in range(draws):
            values = [
                table[client][shadow][image]
                for place, client in enumerate(clients[d])
                for shadow in shadows[d][place]
                for image in images[d][place]
            ]
            means[d] += sign * sum(values) / len(values)
    found = clustered(one, key, other if against else None, level=level, draws=draws)
    assert found == percentiles(means, level)


def test_a_clustered_interval_covers_what_one_over_images_misses(key):
    covered, naive = 0, 0
    for i in range(40):
        values = nested(key.fold(i), 12, 3, 30)
        low, high = clustered(values, key.fold("c", i), draws=200)
        covered += low <= 0 <= high
        low, high = bootstrap(values.mean((0, 1)), key.fold("b", i), draws=200)
        naive += low <= 0 <= high
    assert covered >= 30  # of a share of 90%, fewer have a probability of .2%
    assert naive <= 20


def test_a_clustered_difference_leaves_out_what_both_share(key):
    one = nested(key, 4, 3, 60, spread=(1.0, 0.02, 0.5))
    other = one - 0.1 + nested(key.fold("other"), 4, 3, 60, spread=(0.0, 0.02, 0.0))
    low, high = clustered(one, key, other)
    assert 0.05 < low < 0.1 < high < 0.15
    assert clustered(one, key)[1] - clustered(one, key)[0] > 5 * (high - low)


def test_a_clustered_interval_of_equal_values_has_no_width(key):
    low, high = clustered(torch.full((2, 3, 7), 0.25), key)
    assert low == high == pytest.approx(0.25)


def test_detectable_rate_is_where_the_power_is_reached():
    rate = detectable_rate(100, ceiling=0.05)
    needed = next(k for k in range(101) if clopper_pearson(k, 100)[0] > 0.05)
    assert binom.sf(needed - 1, 100, rate) == pytest.approx(0.95, abs=1e-6)
    assert detectable_rate(500, 0.05) < rate
    assert detectable_rate(2, ceiling=0.9) == 1.0
    half = detectable_rate(100, 0.05, power=0.5)
    assert binom.sf(needed - 1, 100, half) == pytest.approx(0.5, abs=1e-6)
    level = clopper_pearson(7, 100)[0]  # the lower limit must exceed the ceiling, not reach it
    assert detectable_rate(100, level) == rate_reaching(8, 100)
    assert detectable_rate(100, level - 1e-9) == rate_reaching(7, 100)


def test_the_rate_that_reaches_so_many():
    assert rate_reaching(4, 4) == pytest.approx(0.95 ** (1 / 4))  # all of them
    assert rate_reaching(1, 4) == pytest.approx(1 - 0.05 ** (1 / 4))  # not none
    assert rate_reaching(5, 4) == 1.0
    assert rate_reaching(0, 4) == pytest.approx(0)
    assert rate_reaching(1, 1, power=0.5) == pytest.approx(0.5)


def test_a_rate_has_its_exact_interval():
    rate = rate_of(3, 20, chance=0.1, detectable=0.3)
    assert (rate.successes, rate.trials, rate.chance, rate.detectable) == (3, 20, 0.1, 0.3)
    assert (rate.low, rate.high) == clopper_pearson(3, 20)
    nothing = rate_of(0, 0)
    assert (nothing.low, nothing.high, nothing.chance, nothing.detectable) == (0.0, 1.0, None, 0.0)


def test_is_spearmans_with_ties(key):
    left = torch.randint(5, (40,), generator=key.generator())
    right = left + torch.randint(5, (40,), generator=key.fold("noise").generator())
    found = rank_correlation(left, right, key)
    assert found.rho == pytest.approx(spearmanr(left, right).statistic)
    assert found.low < found.rho < found.high


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_the_interval_is_that_of_the_drawn_targets(key, level):
    """Also where a draw does not vary: then it is no correlation."""
    left, right = torch.tensor([1.0, 2, 2, 4]), torch.tensor([1.0, 3, 2, 2])
    picks = torch.randint(4, (300, 4), generator=key.generator())
    drawn = [
        spearmanr(left[own], right[own]).statistic
        if len(left[own].unique()) > 1 < len(right[own].unique())
        else 0.0
        for own in picks
    ]
    assert 0.0 in drawn
    found = rank_correlation(left, right, key, level=level, draws=300)
    expected = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_any_rising_function_is_a_correlation_of_one(key):
    values = torch.rand(30, generator=key.generator())
    assert rank_correlation(values, values.exp(), key).low == pytest.approx(1)
    assert rank_correlation(values, -values, key).high == pytest.approx(-1)


def test_the_interval_covers_a_planted_correlation():
    planted, trials, covered = 0.6, 50, 0
    truth = 6 / math.pi * math.asin(planted / 2)  # Spearman's of two normal variables
    for trial in range(trials):
        key = Key.from_seed(trial)
        left, other = torch.randn(2, 100, generator=key.generator())
        right = planted * left + math.sqrt(1 - planted**2) * other
        found = rank_correlation(left, right, key.fold("draws"), draws=200)
        covered += found.low <= truth <= found.high
    assert 43 <= covered <= 50  # of 95%, fewer have a probability of .3%


def test_nothing_is_said_about_a_constant(key):
    ramp = torch.arange(6.0)
    for left, right in ((ramp, torch.ones(6)), (torch.ones(6), ramp)):
        assert rank_correlation(left, right, key) == Correlation(0.0, -1.0, 1.0)
    assert rank_correlation(ramp[:3], ramp[:3], key).rho == pytest.approx(1)  # three are enough


def test_words_and_metrics():
    found = Correlation(-0.5, -0.625, 0.25)
    assert str(found) == "-0.50 (-0.62 to +0.25)"
    assert found.metrics("norm") == {
        "norm.rho": -0.5,
        "norm.rho_low": -0.625,
        "norm.rho_high": 0.25,
    }


@pytest.mark.parametrize("shapes", [((4,), (5,)), ((2,), (2,)), ((3, 2), (3, 2))])
def test_errors(key, shapes):
    left, right = (torch.rand(shape) for shape in shapes)
    with pytest.raises(ExhumeError, match="at least 3 targets needed"):
        rank_correlation(left, right, key)


scores = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(scores, scores)
def test_auc_is_the_share_of_pairs_in_the_right_order(members, others):
    naive = sum((m > o) + 0.5 * (m == o) for m in members for o in others)
    found = auc(torch.tensor(members).double(), torch.tensor(others).double())
    assert float(found) == pytest.approx(naive / len(members) / len(others))


def test_targets_are_separated_one_by_one():
    """Pooled, the easy target's others would beat the hard target's members."""
    members = torch.tensor([[0.9, 0.2], [0.8, 0.3]])
    others = torch.tensor([[0.7, 0.1], [0.6, 0.0], [0.5, 0.0]])
    assert auc(members, others).tolist() == [1.0, 1.0]
    assert mean_auc(members, others) == 1.0
    assert mean_auc(others, members) == 0.0
    assert float(auc(members.flatten(), others.flatten())) < 1
    assert mean_auc(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])) == 0.5


def test_gap_over_spread():
    members, others = torch.tensor([[3.0], [5.0]]), torch.tensor([[0.0], [2.0]])
    assert float(gap_over_spread(members, others)) == pytest.approx(3 / 2**0.5)
    members, others = torch.arange(10.0).reshape(5, 2).double() ** 2, torch.eye(2).double()
    columns = zip(members.T, others.T, strict=True)
    naive = [(a.mean() - b.mean()) / ((a.var() + b.var()) / 2) ** 0.5 for a, b in columns]
    torch.testing.assert_close(gap_over_spread(members, others), torch.stack(naive))
    still = torch.ones(3, 1)
    assert float(gap_over_spread(still, still)) == 0
    assert float(gap_over_spread(still + 1, still)) == float("inf")


def test_what_cannot_be_scored_is_refused():
    one = torch.ones(1, 2)
    with pytest.raises(ExhumeError, match="0 models with and 1 without"):
        auc(one[:0], one)
    with pytest.raises(ExhumeError, match="1 models with and 0 without"):
        auc(one, one[:0])
    for members, others in ((1, 2), (2, 1)):
        with pytest.raises(ExhumeError, match="at least 2 of each needed"):
            gap_over_spread(one.expand(members, 2), one.expand(others, 2))
    with pytest.raises(ExhumeError, match="not of the same targets"):
        auc(one, torch.ones(1, 3))
    broken = torch.tensor([[1.0, float("nan")]])
    for members, others in ((broken, one), (one, broken)):
        with pytest.raises(ExhumeError, match="not a number"):
            auc(members, others)
