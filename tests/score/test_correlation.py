from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import spearmanr

from exhume.contract import ExhumeError, Key
from exhume.score.correlation import Correlation, rank_correlation


def test_is_spearmans_with_ties(key):
    left = torch.randint(5, (40,), generator=key.generator())
    right = left + torch.randint(5, (40,), generator=key.fold("noise").generator())
    found = rank_correlation(left, right, key)
    assert found.rho == pytest.approx(spearmanr(left, right).statistic)
    assert found.low < found.rho < found.high


def test_any_rising_function_is_a_correlation_of_one(key):
    values = torch.rand(30, generator=key.generator())
    assert rank_correlation(values, values.exp(), key).low == pytest.approx(1)
    assert rank_correlation(values, -values, key).high == pytest.approx(-1)


def test_the_interval_covers_a_planted_correlation():
    planted, trials, covered = 0.6, 100, 0
    truth = 6 / math.pi * math.asin(planted / 2)  # Spearman's of two normal variables
    for trial in range(trials):
        key = Key.from_seed(trial)
        left, other = torch.randn(2, 100, generator=key.generator())
        right = planted * left + math.sqrt(1 - planted**2) * other
        found = rank_correlation(left, right, key.fold("draws"), draws=300)
        covered += found.low <= truth <= found.high
    assert 88 <= covered <= 100


def test_nothing_is_said_about_a_constant(key):
    ramp = torch.arange(6.0)
    assert rank_correlation(ramp, torch.ones(6), key) == Correlation(0.0, -1.0, 1.0)


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
