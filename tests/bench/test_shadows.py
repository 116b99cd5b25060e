from __future__ import annotations

import pytest

from exhume.bench import run_benches, shadows
from exhume.bench.shadows import ShadowCase
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.train.dp import Privacy

SMALL = {
    "mlp": ShadowCase(MLP((784,), (10,), 10), 60, steps=5, models=4),
    "cnn": ShadowCase(CNN((3, 12, 12), (4, 5), (4, 3), (2, 1)), 20, steps=3, models=3),
    "private": ShadowCase(
        MLP((784,), (10,), 10), 60, steps=5, models=4, privacy=Privacy(clip=0.5, noise=0.1)
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_entry_and_that_both_sides_agree(monkeypatch, name):
    monkeypatch.setattr(shadows, "CASES", (SMALL[name],))
    (entry,) = run_benches("shadows")
    assert entry["largest_difference"] < 1e-5
    assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
    assert 0 < entry["peak_fraction"] < 1.5
    assert {"name", "case", "ours", "baseline", "ratio", "peak_fraction"} <= set(entry)


def test_operations_are_those_of_the_formula():
    n, d, k, c, steps = 60, 784, 10, 10, 5
    assert SMALL["mlp"].operations() == (4 * n * d * k + 6 * n * k * c) * steps
    table_five = ShadowCase(CNN(), 1, steps=1).operations()
    assert table_five == 4 * 48 * 16 * 225 + 6 * (256 * 32 * 144 + 4608 * 10 + 10 * 10)


def test_there_is_a_case_of_each_kind():
    assert {case.records for case in shadows.CASES if isinstance(case.architecture, MLP)} == {
        1000,
        10_000,
    }
    assert any(isinstance(case.architecture, CNN) for case in shadows.CASES)
    assert any(case.privacy.clips for case in shadows.CASES)
