from __future__ import annotations

import pytest
import torch

from exhume.attacks.gradient.decompose import decompose
from exhume.attacks.gradient.moments import Samples, polish
from exhume.attacks.gradient.piecewise import CERTAIN, recurring_gates
from exhume.attacks.gradient.span import EXACT, solve_gates, solve_smooth, span_of_slopes
from exhume.attacks.gradient.tensor import deflate
from exhume.core.contract import Key, NotApplicable
from exhume.models.activations import activation

KEY = Key.from_seed(3)


def planted(q, m, name, *, key=KEY, alike=0.3):
    g = key.generator()
    records = torch.randn(q, q, dtype=torch.float64, generator=g)
    records = records / records.norm(dim=1, keepdim=True) + alike * torch.ones(q) / q**0.5
    strengths = (torch.rand(q, dtype=torch.float64, generator=g) + 0.5) * (-1.0) ** torch.arange(q)
    points = torch.randn(m, q, dtype=torch.float64, generator=g)
    sigma = activation(name)
    z = points @ records.T
    height = sigma.apply(z)
    slopes = (sigma.slope(z, height) * strengths) @ records
    return records, strengths, Samples(points, height @ strengths, slopes)


def worst_cosine(found, truth, *, signed):
    table = torch.nn.functional.normalize(found) @ torch.nn.functional.normalize(truth).T
    table = table if signed else table.abs()
    assert len(set(table.argmax(0).tolist())) == len(truth)  # one to one
    return float(table.max(0).values.min())


@pytest.mark.parametrize("refined", [False, True])
@pytest.mark.parametrize("order", [3, 4])
def test_decomposition_of_planted_terms(refined, order):
    g = KEY.generator()
    directions = torch.randn(4, 4, dtype=torch.float64, generator=g)
    directions = torch.nn.functional.normalize(directions)
    weights = torch.tensor([1.0, -2.0, 0.5, 1.5], dtype=torch.float64)
    rule = "i,ia,ib,ic->abc" if order == 3 else "i,ia,ib,ic,id->abcd"
    tensor = torch.einsum(rule, weights, *[directions] * order)
    terms = decompose(tensor, refined=refined, key=KEY)
    assert worst_cosine(terms.directions, directions, signed=False) > 1 - 1e-6
    assert terms.misfit < 1e-4


def test_a_refined_decomposition_bears_noise_better():
    g = KEY.generator()
    directions = torch.nn.functional.normalize(torch.randn(5, 5, dtype=torch.float64, generator=g))
    tensor = torch.einsum("ia,ib,ic->abc", *[directions] * 3)
    noise = 0.003 * torch.randn(5, 5, 5, dtype=torch.float64, generator=g)
    noisy = tensor + sum(noise.permute(p) for p in ((0, 1, 2), (1, 2, 0), (2, 0, 1)))
    plain, refined = (decompose(noisy, refined=each, key=KEY).misfit for each in (False, True))
    assert refined <= plain
    assert refined < 0.05


@pytest.mark.parametrize(("name", "order"), [("tanh", 3), ("elu", 3), ("gelu", 4)])
def test_smooth_activations_are_solved_exactly(name, order):
    records, _, samples = planted(4, 1500, name)
    fit = solve_smooth(activation(name), samples, order, KEY)
    assert fit.misfit < EXACT
    assert worst_cosine(fit.records, records, signed=name != "tanh") > 1 - 1e-8
    norms = fit.records.norm(dim=1).sort().values
    torch.testing.assert_close(norms, records.norm(dim=1).sort().values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["relu", "leaky-relu"])
def test_gates_are_found_exactly_and_signed(name):
    records, strengths, samples = planted(5, 2000, name)
    opened = solve_gates(activation(name), samples, 4, KEY)
    assert float(opened.spreads.max()) < CERTAIN
    assert worst_cosine(opened.directions, records, signed=True) > 1 - 1e-8
    products = (strengths * records.norm(dim=1)).sort().values
    torch.testing.assert_close(opened.strengths.sort().values, products, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["relu", "leaky-relu"])
def test_recurring_steps_find_gates_without_any_moment(name):
    """Records close to each other, as images are: their gates mostly open together."""
    records, strengths, samples = planted(12, 1500, name, alike=2.0)
    gates = recurring_gates(samples.points, samples.slopes, KEY)
    steps = torch.stack([gate.step for gate in gates])
    assert len(gates) == 12
    signs = strengths.sign()[:, None]
    assert worst_cosine(steps, signs * records, signed=True) > 1 - 1e-10
    for gate in gates:
        side = samples.points @ records.T > 0
        assert int((side == gate.open[:, None]).all(0).sum()) == 1


def test_steps_that_do_not_recur_are_no_gates():
    _, _, samples = planted(4, 400, "tanh")
    assert recurring_gates(samples.points, samples.slopes, KEY) == []
    still = torch.zeros_like(samples.slopes)
    assert recurring_gates(samples.points, still, KEY) == []


def test_moments_find_gates_where_rounding_hides_the_steps():
    records, _, samples = planted(3, 1500, "relu")
    noise = torch.randn(samples.slopes.shape, dtype=torch.float64, generator=KEY.generator())
    coarse = samples.slopes + 1e-2 * samples.slopes.std() * noise
    assert recurring_gates(samples.points, coarse, KEY) == []
    opened = solve_gates(
        activation("relu"), Samples(samples.points, samples.values, coarse), 4, KEY
    )
    assert worst_cosine(opened.directions, records, signed=True) > 0.999


def test_too_many_gates_for_moments_say_so(monkeypatch):
    monkeypatch.setattr("exhume.attacks.gradient.span._LARGEST", 3)
    _, _, samples = planted(4, 300, "relu")
    noise = torch.randn(samples.slopes.shape, dtype=torch.float64, generator=KEY.generator())
    opened = solve_gates(activation("relu"), Samples(samples.points, samples.values, noise), 4, KEY)
    assert opened.directions.shape == (4, 4)
    assert float(opened.spreads.min()) == 1


def test_a_hopeless_fit_says_so():
    _, _, samples = planted(3, 300, "tanh")
    noise = torch.randn(300, dtype=torch.float64, generator=KEY.generator())
    fit = polish(activation("tanh"), Samples(samples.points, noise), torch.eye(3).double())
    assert fit.misfit > 0.5


def test_span_and_batch_size_from_slopes():
    g = KEY.generator()
    left, right = torch.randn(200, 6, generator=g), torch.randn(6, 80, generator=g)
    basis, _ = span_of_slopes(left @ right, KEY)
    assert basis.shape == (80, 6)
    rows = right.double()
    torch.testing.assert_close(rows @ basis @ basis.T, rows, rtol=1e-5, atol=1e-5)
    noisy = left @ right + 0.02 * torch.randn(200, 80, generator=g)
    assert span_of_slopes(noisy, KEY)[0].shape == (80, 6)
    with pytest.raises(NotApplicable, match="no gap"):
        span_of_slopes(torch.randn(200, 80, generator=g), KEY)
    with pytest.raises(NotApplicable, match="no gap"):
        span_of_slopes(torch.zeros(20, 8), KEY)


def test_the_first_drop_of_the_spectrum_is_not_the_last():
    """40 records close to each other: one value stands out, and the end lies beyond the first sketch."""
    g = KEY.generator()
    left, right = torch.randn(300, 40, generator=g), torch.randn(40, 120, generator=g) + 5
    values = torch.linalg.svdvals(left @ right)
    assert float(values[0]) > 3 * float(values[1])
    basis, _ = span_of_slopes(left @ right, KEY)
    assert basis.shape == (120, 40)


def test_dead_pixels_are_not_the_end_of_the_spectrum():
    g = KEY.generator()
    clean = torch.randn(200, 3, generator=g) @ torch.randn(3, 80, generator=g)
    clean[:, 50:] = 0
    basis, _ = span_of_slopes(clean, KEY)
    assert basis.shape == (80, 3)
    assert float(basis[50:].abs().max()) == 0
    noise = torch.randn(200, 80, generator=g)
    noise[:, 20:] = 0
    with pytest.raises(NotApplicable, match="no gap"):
        span_of_slopes(noise, KEY)


def test_deflation_is_least_squares():
    g = KEY.generator()
    weights = torch.randn(300, 5, dtype=torch.float64, generator=g)
    values = torch.randn(300, dtype=torch.float64, generator=g) + weights @ torch.ones(5).double()
    left, slope = deflate(weights, values)
    columns = torch.cat([weights, torch.ones(300, 1).double()], 1)
    exact = torch.linalg.lstsq(columns, values[:, None]).solution[:, 0]
    torch.testing.assert_close(slope, exact[:5], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(left, values - columns @ exact, rtol=1e-6, atol=1e-6)
