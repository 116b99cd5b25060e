from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exhume.attacks.informed.ridge import (
    PENALTIES,
    fit_ridge,
    gaussian_kernel,
    left_out_variance,
    variance,
)


def naive_prediction(kernel, targets, penalty, cross):
    return cross @ torch.linalg.solve(kernel + penalty * torch.eye(len(kernel)).double(), targets)


@settings(deadline=None)
@given(st.integers(3, 12), st.integers(1, 5), st.integers(1, 3), st.integers(0, 1000))
def test_leave_one_out_equals_refitting_without_the_row(n, features, outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator, dtype=torch.float64)
    y = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    kernel = x @ x.T + 1
    ridge = fit_ridge(kernel, y, lambda held_out: float((held_out - y).square().mean()))
    assert any(
        abs(ridge.penalty / float(kernel.diagonal().mean()) / f - 1) < 1e-6 for f in PENALTIES
    )
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        expected = naive_prediction(
            kernel[rest][:, rest], y[rest], ridge.penalty, kernel[i : i + 1, rest]
        )
        torch.testing.assert_close(ridge.held_out[i : i + 1], expected, rtol=1e-5, atol=1e-6)
    new = torch.randn(2, features, generator=generator, dtype=torch.float64)
    cross = new @ x.T + 1
    torch.testing.assert_close(
        ridge.predict(cross),
        naive_prediction(kernel, y, ridge.penalty, cross),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_planted_linear_map_is_found():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    weights = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    y = x @ weights
    ridge = fit_ridge(x @ x.T, y, lambda held_out: float((held_out - y).square().mean()))
    new = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(ridge.predict(new @ x.T), new @ weights, rtol=1e-4, atol=1e-4)


def test_variance_is_larger_far_from_the_data():
    x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    y = torch.sin(3 * x)
    ridge = fit_ridge(gaussian_kernel(x, x, 0.1), y, lambda h: float((h - y).square().mean()))
    near, far = torch.tensor([[0.5]]).double(), torch.tensor([[5.0]]).double()
    own = torch.ones(1, dtype=torch.float64)
    close, remote = (
        float(variance(gaussian_kernel(at, x, 0.1), own, ridge.inverse, ridge.penalty))
        for at in (near, far)
    )
    assert remote > 10 * close


def test_left_out_variance_is_that_of_a_fit_without_the_point(key):
    kernel = gaussian_kernel(*[torch.randn(9, 2, generator=key.generator()).double()] * 2, 1.0)
    penalty = 0.1
    eye = torch.eye(9, dtype=torch.float64)
    left_out = left_out_variance(torch.linalg.inv(kernel + penalty * eye))
    rest = torch.linalg.inv(kernel[1:, 1:] + penalty * eye[1:, 1:])
    naive = variance(kernel[:1, 1:], kernel[:1, 0], rest, penalty)
    torch.testing.assert_close(left_out[:1], naive)


def test_gaussian_kernel_equals_its_formula():
    a, b = torch.randn(3, 4).double(), torch.randn(5, 4).double()
    torch.testing.assert_close(gaussian_kernel(a, b, 2.0), torch.exp(-(torch.cdist(a, b) ** 2) / 2))
