from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from exhume.attacks.informed.ridge import (
    INTERCEPT,
    HeldRows,
    Sample,
    _Solved,
    basis_of,
    regress,
)
from exhume.core.contract import Records


def planted(key, count=30, read=12, values=8, noise=0.02):
    """Records that are a linear map of what is read, label by label, and some noise."""
    generator = key.generator()
    found = F.normalize(torch.randn(count, read, generator=generator, dtype=torch.float64), dim=1)
    maps = torch.randn(2, read, values, generator=generator, dtype=torch.float64) * 0.2
    labels = torch.arange(count) % 2
    records = 0.5 + torch.einsum("ir,irv->iv", found, maps[labels])
    records += noise * torch.randn(records.shape, generator=generator, dtype=torch.float64)
    return found, Records(records.clamp(0, 1), labels, ("a", "b"))


@pytest.fixture
def game(key):
    found, records = planted(key, 200)
    found, records = found[:80], records[:80]
    samples = {
        c: Sample(HeldRows(found[records.labels == c]), records.inputs[records.labels == c])
        for c in (0, 1)
    }
    return samples, basis_of(records)


def test_the_basis_is_orthonormal_and_spans_the_records(key):
    for count in (5, 50):  # fewer and more records than values
        _, records = planted(key, count)
        basis = basis_of(records)
        gram = basis.vectors.T @ basis.vectors
        torch.testing.assert_close(gram, torch.eye(len(gram), dtype=gram.dtype))
        rows = records.inputs[records.labels == 0]
        rows = rows - rows.mean(0)
        torch.testing.assert_close(rows @ basis.vectors @ basis.vectors.T, rows)


def test_leave_one_out_is_what_leaving_one_out_gives(game):
    """Refit without row i, in the naive way, for one penalty and every component."""
    samples, basis = game
    solved = _Solved.of(samples[0], basis)
    kernel, components = samples[0].read.gram() + INTERCEPT, solved.components()
    which = 5
    penalty = float(solved.penalties()[which])
    error = torch.zeros(basis.vectors.shape[1], dtype=torch.float64)
    for i in range(len(kernel)):
        rest = [j for j in range(len(kernel)) if j != i]
        inner = kernel[rest][:, rest] + penalty * torch.eye(len(rest), dtype=torch.float64)
        guess = kernel[i, rest] @ torch.linalg.solve(inner, components[rest])
        error += (guess - components[i]).square()
    torch.testing.assert_close(solved.path()[0, which], error)


def test_it_learns_the_planted_maps_and_knows_its_error(game, key):
    samples, basis = game
    fitted, error = regress(samples, basis)
    found, records = planted(key, 200)  # the first 80 are those fitted
    new = torch.arange(80, 200)
    misses, spreads = [], []
    for label, one in fitted.items():
        rows = new[records.labels[new] == label]
        guess, expected = one.apply(found[rows])
        misses.append((guess - records.inputs[rows]).square().mean(1))
        spreads.append(expected)
    miss = torch.cat(misses).mean()
    assert float(miss) < 0.6 * float(records.inputs.var(0).mean())
    assert error == pytest.approx(float(miss), rel=0.4)
    assert error == pytest.approx(float(torch.cat(spreads).mean()), rel=0.4)


def test_pure_noise_gives_the_mean(key):
    generator = key.generator()
    read = F.normalize(torch.randn(60, 5, generator=generator, dtype=torch.float64), dim=1)
    records = torch.rand(60, 4, generator=generator, dtype=torch.float64)
    basis = basis_of(Records(records, torch.zeros(60, dtype=torch.int64), ("a",)))
    fitted, error = regress({0: Sample(HeldRows(read), records)}, basis)
    spread = float((records - records.mean(0)).square().mean())
    assert error < 1.1 * spread
    guess, _ = fitted[0].apply(F.normalize(-read, dim=1))
    assert float((guess - records.mean(0)).square().mean()) < 0.2 * spread
