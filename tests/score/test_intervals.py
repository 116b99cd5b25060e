from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from exhume.score.intervals import bootstrap, clopper_pearson, detectable_rate


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


def test_detectable_rate_is_where_the_power_is_reached():
    rate = detectable_rate(100, ceiling=0.05)
    needed = next(k for k in range(101) if clopper_pearson(k, 100)[0] > 0.05)
    assert binom.sf(needed - 1, 100, rate) == pytest.approx(0.95, abs=1e-6)
    assert detectable_rate(500, 0.05) < rate
    assert detectable_rate(2, ceiling=0.9) == 1.0
