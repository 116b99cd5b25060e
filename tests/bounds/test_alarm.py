"""The alarm: silent where attack and bound agree, loud where they contradict each other, rarely wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import binom

from exhume.bounds.prior import certify
from exhume.core.contract import ExhumeError
from exhume.score.intervals import clopper_pearson


def test_success_below_the_bound_is_no_alarm():
    found = certify(40, 100, kappa=0.1, bound=0.5)
    assert not found.alarm
    assert (found.low, found.high) == clopper_pearson(40, 100)
    assert found.metrics("a") == {
        "a": 0.4,
        "a_low": found.low,
        "a_high": found.high,
        "a_surely": found.surely,
    }
    assert found.sentence() == (
        "Success 40 of 100 (40.0%), 95% interval 30.3% to 50.3%; guessing reaches 10.0%, and the stated "
        "privacy allows no attack more than 50.0%."
    )


def test_success_far_above_the_bound_is():
    found = certify(90, 100, kappa=0.1, bound=0.5)
    assert found.alarm
    assert found.sentence().startswith("ALARM: success 90 of 100 (90.0%) is certainly above 7")
    assert "allows no attack more than 50.0%" in found.sentence()


@pytest.mark.parametrize("comparisons", [1, 20])
def test_the_limit_is_the_binomial_tail(comparisons):
    """At a bound of exactly the limit, so many successes would happen with the alarm's level."""
    found = certify(60, 100, kappa=0.1, bound=0.5, comparisons=comparisons)
    assert binom.sf(59, 100, found.surely) == pytest.approx(1e-4 / comparisons, rel=1e-6)
    assert not replace(found, bound=found.surely).alarm
    assert replace(found, bound=found.surely - 1e-9).alarm


def test_a_true_bound_that_is_reached_does_not_ring():
    """Also where every record of the prior is tried equally often, some always found and some never."""
    generator = torch.Generator().manual_seed(0)
    for shares in (torch.full((200,), 0.3), (torch.arange(200) % 10 < 3).float()):
        hits = (torch.rand(200, 200, generator=generator) < shares).sum(1).unique()
        alarms = [certify(int(n), 200, kappa=0.1, bound=0.3).alarm for n in hits]
        assert sum(alarms) == 0


def test_refusals():
    with pytest.raises(ExhumeError, match="successes: 3 of 2 trials given"):
        certify(3, 2, kappa=0.1, bound=0.2)
    with pytest.raises(ExhumeError, match="comparisons: 0 given, at least 1 needed"):
        certify(1, 2, kappa=0.1, bound=0.2, comparisons=0)
    for successes, trials in ((-1, 2), (0, 0)):
        with pytest.raises(ExhumeError, match=f"successes: {successes} of {trials} trials given"):
            certify(successes, trials, kappa=0.1, bound=0.2)
    assert certify(1, 1, kappa=0.1, bound=0.2).rate == 1
    assert certify(0, 1, kappa=0.1, bound=0.2, of="a channel").of == "a channel"
