"""kappa of finite and continuous priors: planted balls, brute force, and soundness over random centres."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import linprog, minimize_scalar
from scipy.stats import chi2

from exhume.bounds import prior
from exhume.bounds.continuous import kappa_of_density, kappa_of_gaussian, kappa_of_uniform
from exhume.bounds.prior import kappa_of_balls, kappa_of_naming
from exhume.core.contract import ExhumeError, Key


def test_naming_counts_equal_records_as_one():
    records = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    assert kappa_of_naming(records) == 0.5
    assert kappa_of_naming(records, torch.tensor([0.1, 0.6, 0.1, 0.2])) == pytest.approx(0.6)
    assert kappa_of_naming(torch.eye(8)) == 1 / 8


def test_a_centre_between_the_records_covers_more_than_any_record():
    """A regular simplex: its middle is within reach of all, each corner of itself only."""
    corners = torch.eye(10)
    eta = (corners - corners.mean(0)).square().mean(1).max().item() + 1e-6
    found = kappa_of_balls(corners, eta)
    assert found.high == 1.0
    around = [(corners - corner).square().mean(1) <= eta for corner in corners]
    assert max(covered.double().mean().item() for covered in around) == pytest.approx(0.1)
    assert kappa_of_balls(corners, eta / 3).high == 0.1


def test_a_centre_moves_to_the_mean_of_what_it_covers():
    """A corner of the square covers three, the mean of these three all four."""
    square = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    found = kappa_of_balls(square, 0.5001)
    assert (found.low, found.high) == (1.0, 1.0)
    assert kappa_of_balls(square, 0.1).low == 0.25
    heavy = kappa_of_balls(square, 0.1, torch.tensor([0.1, 0.2, 0.3, 0.4]).double())
    assert (heavy.low, heavy.exact) == (pytest.approx(0.4), True)


def most_around(distances, masses, radius):
    """As a linear programme: mass around one record, none beyond 4 r^2 and on average within 2 r^2."""
    near = distances <= 4 * radius
    cost, mass = (masses * (distances - 2 * radius))[near], masses[near]
    found = linprog(-mass, A_ub=[cost], b_ub=[0.0], bounds=(0, 1), method="highs")
    return -found.fun


@pytest.mark.parametrize("seed", range(6))
def test_high_is_the_most_that_can_be_gathered(seed, monkeypatch):
    monkeypatch.setattr(prior, "_BLOCK", 5)
    generator = torch.Generator().manual_seed(seed)
    records = 100 * torch.rand(12, 2, generator=generator, dtype=torch.float64)
    masses = torch.rand(12, generator=generator, dtype=torch.float64)
    masses /= masses.sum()
    for eta in (20.0, 100.0, 300.0):
        squared = (records[:, None] - records).square().sum(2).numpy()
        best = max(most_around(row, masses.numpy(), 2 * eta) for row in squared)
        assert kappa_of_balls(records, eta, masses).high == pytest.approx(best, abs=1e-6)
        equal = max(most_around(row, np.full(12, 1 / 12), 2 * eta) for row in squared)
        assert kappa_of_balls(records, eta).high == pytest.approx(equal, abs=1e-6)


def test_high_does_not_depend_on_the_unit():
    """Two heavy records in one ball, a light one beside each: 0.8 of the mass, in metres or in kilometres."""
    line = torch.tensor([[0.0], [2.0], [-1.99], [3.99]], dtype=torch.float64)
    masses = torch.tensor([0.4, 0.4, 0.1, 0.1], dtype=torch.float64)
    metres = kappa_of_balls(line, 1.0, masses).high
    assert metres >= 0.8
    assert kappa_of_balls(line / 1000, 1e-6, masses).high == pytest.approx(metres)


def test_two_records_on_the_rim_of_a_ball():
    """At a distance of exactly twice the radius both are covered; a little farther, one."""
    pair = torch.tensor([[0.0], [2.0]])
    assert kappa_of_balls(pair, 1.0).high == 1.0
    far = kappa_of_balls(pair, 0.99)
    assert (far.low, far.high) == (0.5, 0.5)


def test_records_far_apart_are_exact():
    found = kappa_of_balls(10 * torch.eye(6), 1.0)
    assert found.exact
    assert found.high == pytest.approx(1 / 6)


def test_planted_clusters_are_found_from_both_sides():
    generator = torch.Generator().manual_seed(0)
    centres = 10 * torch.randn(5, 20, generator=generator)
    sizes = torch.tensor([3, 4, 8, 5, 5])
    noise = 0.1 * torch.randn(25, 20, generator=generator)
    records = centres.repeat_interleave(sizes, 0) + noise
    found = kappa_of_balls(records, 0.05)
    assert (found.low, found.high) == (pytest.approx(8 / 25), pytest.approx(8 / 25))
    heavy = torch.full((25,), 0.02)
    heavy[0] = 1 - 24 * 0.02
    assert kappa_of_balls(records, 0.05, heavy).high == pytest.approx(0.52 + 2 * 0.02)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5), st.floats(0.01, 2))
def test_no_centre_beats_high_and_low_is_reached(seed, count, size, eta):
    generator = torch.Generator().manual_seed(seed)
    records = torch.randn(count, size, generator=generator)
    masses = torch.rand(count, generator=generator, dtype=torch.float64) + 0.01
    masses /= masses.sum()
    found = kappa_of_balls(records, eta, masses)
    mixes = torch.rand(400, count, generator=generator) ** 4
    centres = torch.cat([records, (mixes / mixes.sum(1, keepdim=True)) @ records])
    covered = ((centres[:, None] - records).square().mean(2) <= eta).double() @ masses
    assert covered.max().item() <= found.high + 1e-9
    assert masses.max().item() - 1e-6 <= found.low <= found.high + 1e-12


def test_high_is_exact_on_a_line():
    """Brute force: in one dimension the best interval starts at a record."""
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(40, generator=generator).sort().values
    best = max(((values >= v) & (values <= v + 0.2)).sum().item() for v in values) / 40
    found = kappa_of_balls(values[:, None], 0.01)
    assert found.low <= best <= found.high <= 2 * best


def test_the_gaussian_is_exact_where_it_is_round():
    draws = torch.randn(200_000, 3, generator=Key.from_seed(0).generator())
    share = (draws.square().mean(1) <= 0.3).double().mean().item()
    assert kappa_of_gaussian(0.3, torch.ones(3)) == pytest.approx(share, abs=0.005)
    assert kappa_of_gaussian(0.3 * 4, 2 * torch.ones(3)) == pytest.approx(
        kappa_of_gaussian(0.3, torch.ones(3))
    )


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(0.01, 1))
def test_continuous_bounds_hold_for_any_centre(seed, size, eta):
    generator = torch.Generator().manual_seed(seed)
    deviations = torch.rand(size, generator=generator) + 0.1
    draws = torch.randn(4000, size, generator=generator) * deviations
    cube = torch.rand(4000, size, generator=generator)
    high, uniform = kappa_of_gaussian(eta, deviations), kappa_of_uniform(eta, size)
    centres = torch.cat([torch.zeros(1, size), torch.randn(5, size, generator=generator) * 0.3])
    for centre in centres:
        assert ((draws - centre).square().mean(1) <= eta).double().mean() <= high + 0.05
        assert ((cube - 0.5 - centre).square().mean(1) <= eta).double().mean() <= uniform + 0.05


def chernoff(reach, log_moment):
    """min over t of exp(t·reach + log E exp(-t X)), searched for."""

    def exponent(u):
        return math.exp(u) * reach + log_moment(math.exp(u))

    found = minimize_scalar(exponent, bounds=(-12, 16), method="bounded")
    return math.exp(min(0.0, found.fun))


@pytest.mark.parametrize("eta", [0.05, 0.2, 0.5])
def test_a_long_gaussian_against_a_search_for_the_best_tilt(eta):
    spread = np.array([1.0, 0.9, 0.3, 0.2, 0.05])

    def log_moment(t):
        return -0.5 * np.log1p(2 * t * spread**2).sum()

    axes = min(
        chi2.cdf(5 * eta / spread[j - 1] ** 2, j) for j in range(1, 6)
    )  # the j widest alone, each as narrow as the narrowest
    best = min(axes, chernoff(5 * eta, log_moment))
    found = kappa_of_gaussian(eta, torch.tensor(spread).flip(0))
    assert found == pytest.approx(best, rel=1e-3)
    flat = torch.cat([torch.tensor(spread), torch.zeros(5)])  # the same ball, in a subspace
    assert kappa_of_gaussian(eta / 2, flat) == pytest.approx(found)


def test_one_of_the_two_gaussian_bounds_is_needed():
    """Chernoff's is the smaller one for many axes that shrink, that of the axes for equal ones."""
    shrinking = torch.linspace(1, 0.5, 40, dtype=torch.float64)
    reach, spread = 40 * 0.05, shrinking.numpy()
    axes = min(chi2.cdf(reach / spread[j - 1] ** 2, j) for j in range(1, 41))
    found = kappa_of_gaussian(0.05, shrinking)
    assert found < 0.9 * axes
    best = chernoff(reach, lambda t: -0.5 * np.log1p(2 * t * spread**2).sum())
    assert found == pytest.approx(best, rel=1e-2)
    equal = kappa_of_gaussian(0.05, torch.full((40,), 0.5))
    assert equal == pytest.approx(chi2.cdf(40 * 0.05 / 0.25, 40))


@pytest.mark.parametrize(("eta", "dimensions"), [(0.06, 100), (0.07, 60), (0.07, 300)])
def test_a_cube_against_a_search_for_the_best_tilt(eta, dimensions):
    def log_moment(t):
        return dimensions * math.log(quad(lambda u: math.exp(-t * u * u), -0.5, 0.5)[0])

    best = chernoff(eta * dimensions, log_moment)
    found = kappa_of_uniform(eta, dimensions)
    assert found == pytest.approx(min(best, kappa_of_density(eta, dimensions, 0.0)), rel=2e-2)
    assert found < 0.9 * kappa_of_density(eta, dimensions, 0.0)  # Chernoff's is the smaller one


def test_the_uniform_prior_on_images_leaves_no_chance_to_guess():
    assert kappa_of_uniform(0.01, 784) < 1e-300
    assert kappa_of_uniform(1 / 12, 784) == pytest.approx(1, abs=0.01)  # the variance: half of them
    assert kappa_of_uniform(4 * 0.05, 3, width=2.0) == pytest.approx(kappa_of_uniform(0.05, 3))
    disc = math.pi * 0.02  # of squared radius 2·0.01: no tilt does better
    assert kappa_of_uniform(0.01, 2) == pytest.approx(disc)


def test_a_bounded_density():
    assert kappa_of_density(0.01, 2, math.log(3)) == pytest.approx(3 * math.pi * 0.02)
    assert (kappa_of_density(10.0, 2, 0.0), kappa_of_density(0.0, 2, 0.0)) == (1.0, 0.0)
    ball = 4 / 3 * math.pi * 0.03**1.5  # of squared radius 3·0.01
    assert kappa_of_density(0.01, 3, 0.0) == pytest.approx(ball)
    assert kappa_of_density(0.01, 1, 0.0) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: kappa_of_naming(torch.zeros(0, 2)),
            "records: none given, a prior needs at least one",
        ),
        (
            lambda: kappa_of_naming(torch.eye(3), torch.ones(2)),
            "masses: 2 given for 3 records; one of 0 or more each is needed",
        ),
        (
            lambda: kappa_of_naming(torch.eye(2), torch.ones(2)),
            "masses: they sum to 2, 1 is needed",
        ),
        (
            lambda: kappa_of_balls(torch.eye(2), math.nan),
            "eta: nan given, a squared error of 0 or more needed",
        ),
        (lambda: kappa_of_uniform(-1.0, 3), "eta: -1.0 given, a squared error of 0 or more needed"),
        (lambda: kappa_of_uniform(0.1, 0), "dimensions: 0 given, at least 1 needed"),
        (lambda: kappa_of_uniform(0.1, 3, 0.0), "width: 0.0 given, a number above 0 is needed"),
        (
            lambda: kappa_of_naming(torch.eye(2), torch.tensor([1.5, -0.5])),
            "masses: 2 given for 2 records; one of 0 or more each is needed",
        ),
        (
            lambda: kappa_of_gaussian(0.1, torch.tensor([1.0, -1.0])),
            "deviations: 0 or more each needed, and one above 0",
        ),
        (
            lambda: kappa_of_gaussian(0.1, torch.zeros(2)),
            "deviations: 0 or more each needed, and one above 0",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ExhumeError) as caught:
        call()
    assert str(caught.value) == message
