"""Intervals: exact ones against scipy's, drawn ones against loops over the same draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from exhume.score.intervals import (
    bootstrap,
    clopper_pearson,
    clustered,
    detectable_rate,
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
