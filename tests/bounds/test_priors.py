"""kappa of finite priors: planted balls, brute force, and soundness over random centres."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from exhume.bounds import prior
from exhume.bounds.prior import kappa_of_balls, kappa_of_naming
from exhume.core.contract import ExhumeError


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


def test_the_rim_of_a_ball_around_a_record_belongs_to_it():
    found = kappa_of_balls(torch.tensor([[0.0], [1.0], [2.0], [9.0]]), 1.0)
    assert found.low == 0.75


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
        (
            lambda: kappa_of_naming(torch.eye(2), torch.tensor([1.5, -0.5])),
            "masses: 2 given for 2 records; one of 0 or more each is needed",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ExhumeError) as caught:
        call()
    assert str(caught.value) == message
