"""Bounds from a guarantee alone: closed forms, their order, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exhume.bounds.dp_sgd import gaussian
from exhume.bounds.prior import approximate_dp, pure_dp, rdp, zcdp
from exhume.core.contract import ExhumeError

KAPPAS = st.floats(1e-9, 1.0)
AMOUNTS = st.floats(0.0, 50.0)


def test_known_values():
    assert pure_dp(0.1, math.log(3)) == pytest.approx(0.3)
    assert approximate_dp(0.1, math.log(3), 0.01) == pytest.approx(0.31)
    assert rdp(0.01, {2.0: math.log(4)}) == pytest.approx(math.sqrt(0.04))
    assert zcdp(math.exp(-4), 1.0) == pytest.approx(math.exp(-1))
    assert zcdp(0.5, math.log(2)) == 1.0
    assert pure_dp(0.9, 1.0) == rdp(0.9, {2.0: 5.0}) == 1.0


def test_without_any_prior_mass():
    assert (pure_dp(0.0, 5.0), approximate_dp(0.0, 5.0, 0.1), rdp(0.0, {2.0: 1.0})) == (0, 0.1, 0)
    assert (zcdp(0.0, 3.0), zcdp(0.0, math.inf)) == (0.0, 1.0)


def test_the_best_order_counts_and_certainty_stays_certain():
    assert rdp(0.01, {2.0: math.log(4), 3.0: math.log(2)}) == pytest.approx(0.02 ** (2 / 3))
    assert rdp(0.01, {3.0: 0.0, 1.5: 0.0}) == pytest.approx(0.01 ** (2 / 3))
    assert rdp(0.5, {1.0001: 0.0}) == pytest.approx(0.5 ** (1 - 1 / 1.0001))
    assert rdp(1.0, {2.0: 0.0}) == zcdp(1.0, 0.0) == pure_dp(1.0, 0.0) == 1.0
    assert approximate_dp(0.9, 0.0, 1.0) == 1.0
    assert approximate_dp(0.25, 0.0, 0.0) == pytest.approx(0.25)
    assert zcdp(0.3, 0.0) == pytest.approx(0.3)
    assert zcdp(0.0, 1.0) == 0.0


@settings(max_examples=15)
@given(KAPPAS, AMOUNTS)
def test_zcdp_is_rdp_at_the_best_order(kappa, rho):
    orders = [1 + 10 ** (x / 100) for x in range(-600, 800)]
    assert zcdp(kappa, rho) == pytest.approx(rdp(kappa, {a: a * rho for a in orders}), rel=1e-3)


@given(KAPPAS, st.floats(0.05, 100), st.integers(1, 200))
def test_no_guarantee_is_tighter_than_the_mechanism_it_is_a_guarantee_of(kappa, noise, steps):
    rho = steps / (2 * noise**2)  # of the composed Gaussian
    tight = gaussian(kappa, noise, steps)
    assert zcdp(kappa, rho) >= tight - 1e-12
    assert rdp(kappa, {1.5: 1.5 * rho, 4.0: 4 * rho}) >= tight - 1e-12


@given(KAPPAS, KAPPAS, AMOUNTS, AMOUNTS)
def test_monotone_and_between_kappa_and_one(first, second, little, much):
    (less, more), (weak, strong) = sorted((first, second)), sorted((little, much))
    for bound in (pure_dp, zcdp, lambda k, e: rdp(k, {2.0: e, 8.0: 4 * e})):
        assert less <= bound(less, weak) + 1e-12 <= bound(more, weak) + 2e-12 <= 1 + 3e-12
        assert bound(less, weak) <= bound(less, strong) + 1e-12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pure_dp(1.5, 1.0), "kappa: 1.5 given, a probability from 0 to 1 is needed"),
        (lambda: zcdp(math.nan, 1.0), "kappa: nan given, a probability from 0 to 1 is needed"),
        (lambda: pure_dp(0.5, -1.0), "epsilon: -1.0 given, 0 or more needed"),
        (lambda: zcdp(0.5, math.nan), "rho: nan given, 0 or more needed"),
        (lambda: approximate_dp(0.5, 1.0, 2.0), "delta: 2.0 given, needed from 0 to 1"),
        (lambda: rdp(0.5, {}), "curve: no order given, at least one is needed"),
        (lambda: rdp(0.5, {1.0: 1.0}), "order: 1.0 given, a finite number above 1 is needed"),
        (
            lambda: rdp(0.5, {2.0: 1.0, math.inf: 1.0}),
            "order: inf given, a finite number above 1 is needed",
        ),
        (lambda: approximate_dp(0.5, 1.0, -0.1), "delta: -0.1 given, needed from 0 to 1"),
        (lambda: pure_dp(-0.1, 1.0), "kappa: -0.1 given, a probability from 0 to 1 is needed"),
        (lambda: rdp(0.5, {2.0: -1.0}), "epsilon: -1.0 given, 0 or more needed"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ExhumeError) as caught:
        call()
    assert str(caught.value) == message
