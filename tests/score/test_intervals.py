from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from exhume.score.intervals import bootstrap, clopper_pearson, clustered, detectable_rate


@given(st.integers(1, 300), st.data())
def test_clopper_pearson_equals_scipy(trials, data):
    successes = data.draw(st.integers(0, trials))
    expected = binomtest(successes, trials).proportion_ci(0.95, "exact")
    assert clopper_pearson(successes, trials) == pytest.approx(
        (expected.low, expected.high), abs=1e-9
    )


def test_bootstrap_covers_a_known_mean(key):
    covered = 0
    for i in range(200):
        values = (torch.rand(80, generator=key.fold(i).generator()) < 0.3).double()
        low, high = bootstrap(values, key.fold("b", i), draws=500)
        covered += low <= 0.3 <= high
    assert covered >= 180  # nominal 190, and the bootstrap is a little narrow at this size


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


def test_a_clustered_interval_covers_what_one_over_images_misses(key):
    covered, naive = 0, 0
    for i in range(100):
        values = nested(key.fold(i), 12, 3, 50)
        low, high = clustered(values, key.fold("c", i), draws=400)
        covered += low <= 0 <= high
        low, high = bootstrap(values.mean((0, 1)), key.fold("b", i), draws=400)
        naive += low <= 0 <= high
    assert covered >= 82
    assert naive <= 50


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
