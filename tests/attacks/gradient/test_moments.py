from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exhume.attacks.gradient.moments import Samples, coefficients, fit_moments, order_for
from exhume.attacks.gradient.span import moment_of
from exhume.attacks.gradient.tensor import first, second_on, third_on
from exhume.core.contract import Key, NotApplicable
from exhume.models.activations import Activation, activation
from exhume.models.two_layer import POLYNOMIALS


def naive(weights, values, order):
    """T_p with every He_p(w) formed, d^p numbers a neuron."""
    d = weights.shape[1]
    eye = torch.eye(d, dtype=weights.dtype)
    total = torch.zeros((d,) * order, dtype=weights.dtype)
    for w, g in zip(weights, values, strict=True):
        total += g * hermite(w, eye, order)
    return total / len(values)


def hermite(w, eye, order):
    """The sum over all ways of pairing some of the axes, each pair giving -I."""
    letters = "abcd"[:order]
    total = torch.zeros((len(w),) * order, dtype=w.dtype)
    for pairs in range(order // 2 + 1):
        seen = set()
        for way in permutations(letters):
            matched = frozenset(frozenset(way[2 * i : 2 * i + 2]) for i in range(pairs))
            if matched in seen:
                continue
            seen.add(matched)
            rest = sorted(set(letters) - {x for pair in matched for x in pair})
            terms = [*("".join(sorted(pair)) for pair in matched), *rest]
            parts = [*([eye] * pairs), *([w] * len(rest))]
            total += (-1) ** pairs * torch.einsum(f"{','.join(terms)}->{letters}", *parts)
    return total


def inside(points, values, order):
    """T_p(V, ..., V) by averages over the points W V: what the regression takes the place of."""
    q = points.shape[1]
    pairs = (points[:, :, None] * points[:, None, :]).flatten(1)
    right = {2: torch.ones_like(points[:, :1]), 3: points, 4: pairs}[order]
    raw = (pairs.T @ (values[:, None] * right)).reshape((q,) * order) / len(values)
    return raw - lower(points, values, order)


def lower(points, values, order):
    """What He_p has besides the p-th power: for p = 4, six w w I less three I I."""
    eye = torch.eye(points.shape[1], dtype=points.dtype)
    if order == 2:
        return values.mean() * eye
    if order == 3:
        return outer(first(points, values), eye, ("a,bc->abc", "b,ac->abc", "c,ab->abc"))
    square = inside(points, values, 2) + values.mean() * eye
    six = ("ab,cd->abcd", "cd,ab->abcd", "ac,bd->abcd", "bd,ac->abcd", "ad,bc->abcd", "bc,ad->abcd")
    three = ("ab,cd->abcd", "ac,bd->abcd", "ad,bc->abcd")
    return outer(square, eye, six) - values.mean() * outer(eye, eye, three)


def outer(left, right, rules):
    return sum(torch.einsum(rule, left, right) for rule in rules)


@settings(max_examples=4, deadline=None)
@given(m=st.integers(1, 3), d=st.integers(2, 4), seed=st.integers(0, 99))
def test_contracted_moments_are_those_of_the_naive_tensors(m, d, seed):
    g = Key.from_seed(seed).generator()
    weights = torch.randn(m, d, dtype=torch.float64, generator=g)
    values = torch.randn(m, dtype=torch.float64, generator=g)
    basis = torch.linalg.qr(torch.randn(d, 2, dtype=torch.float64, generator=g))[0]
    three, four = naive(weights, values, 3), naive(weights, values, 4)
    torch.testing.assert_close(first(weights, values), naive(weights, values, 1))
    torch.testing.assert_close(second_on(weights, values, basis), naive(weights, values, 2) @ basis)
    torch.testing.assert_close(
        third_on(weights, values, basis), torch.einsum("abc,bi,cj->aij", three, basis, basis)
    )
    points = weights @ basis
    torch.testing.assert_close(
        inside(points, values, 3), torch.einsum("abc,ai,bj,ck->ijk", three, *[basis] * 3)
    )
    torch.testing.assert_close(
        inside(points, values, 4), torch.einsum("abcd,ai,bj,ck,dl->ijkl", four, *[basis] * 4)
    )


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_stein(name):
    """The moments of sum_i r_i sigma(w x_i) are sum_i r_i c_p x_i^p, up to noise."""
    g = Key.from_seed(1).generator()
    records = torch.randn(2, 3, dtype=torch.float64, generator=g)
    records[0] *= 2
    strengths = torch.tensor([0.7, -0.4], dtype=torch.float64)
    weights = torch.randn(100_000, 3, dtype=torch.float64, generator=g)
    values = activation(name).apply(weights @ records.T) @ strengths
    for order in (2, 3, 4):
        exact = moment_of(activation(name), records, strengths, order)
        noise = 6 * math.sqrt(math.factorial(order) * float(values.square().mean()) / 100_000)
        assert float((inside(weights, values, order) - exact).abs().max()) < noise


def test_regression_is_exact_on_polynomials_and_better_than_averages():
    g = Key.from_seed(2).generator()
    points = torch.randn(500, 3, dtype=torch.float64, generator=g)
    records = torch.randn(3, 3, dtype=torch.float64, generator=g)
    strengths = torch.ones(3, dtype=torch.float64)
    cube = POLYNOMIALS["cube"]
    z = points @ records.T
    values, slopes = cube.apply(z) @ strengths, cube.slope(z, z) @ records
    exact = moment_of(cube, records, strengths, 3)
    for samples in (Samples(points, values), Samples(points, values, slopes)):
        fitted = fit_moments(samples, 4)
        torch.testing.assert_close(fitted[3], exact, rtol=1e-3, atol=1e-3)
        assert float(fitted[4].norm()) < 1e-2 * float(exact.norm())
    assert float((inside(points, values, 3) - exact).norm()) > 0.1 * float(exact.norm())


def test_coefficients_known_in_closed_form():
    half, root = 0.5, 1 / math.sqrt(2 * math.pi)
    assert coefficients(activation("relu")) == pytest.approx((root, half, root, 0, -root), abs=1e-9)
    assert coefficients(activation("relu"), 3.0) == pytest.approx(
        (3 * root, 3 * half, 3 * root, 0, -3 * root), abs=1e-9
    )
    assert coefficients(POLYNOMIALS["cube"]) == pytest.approx((0, 3, 0, 6, 0), abs=1e-9)


def test_the_order_follows_the_activation():
    assert order_for(activation("tanh")) == order_for(activation("elu")) == 3
    assert order_for(activation("relu")) == order_for(activation("gelu")) == 4
    relu, cube = activation("relu"), POLYNOMIALS["cube"]
    bent = Activation(  # c_3 = .02 beside c_4 = -.4
        "bent",
        lambda x: relu.apply(x) + 0.02 / 6 * cube.apply(x),
        lambda x, y: relu.slope(x, y) + 0.02 / 6 * cube.slope(x, y),
    )
    assert coefficients(bent)[3] == pytest.approx(0.02)
    assert order_for(bent) == 4
    with pytest.raises(NotApplicable, match="square: .* the span of the records and no single"):
        order_for(POLYNOMIALS["square"])
    with pytest.raises(NotApplicable, match="identity: .* one linear combination"):
        order_for(activation("identity"))
