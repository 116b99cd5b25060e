from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from exhume.core.contract import ExhumeError, Key
from exhume.score.correlation import Correlation, rank_correlation


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
