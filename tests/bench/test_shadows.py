from __future__ import annotations

from dataclasses import replace

import pytest

from exhume.bench import busy, convolutions, run_benches, shadows
from exhume.bench.shadows import Case
from exhume.contract import ExhumeError
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.train.dp import Privacy

SMALL = {
    "mlp": Case(MLP((784,), (10,), 10), 60, steps=5, models=4),
    "cnn": Case(CNN((3, 12, 12), (4, 5), (4, 3), (2, 1)), 20, steps=3, models=3),
    "private": Case(
        MLP((784,), (10,), 10), 60, steps=5, models=4, privacy=Privacy(clip=0.5, noise=0.1)
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_entry_and_that_both_sides_agree(monkeypatch, name):
    monkeypatch.setattr(shadows, "CASES", (SMALL[name],))
    monkeypatch.setattr(convolutions, "CASES", ())
    (entry,) = run_benches("shadows")
    assert entry["largest_difference"] < 1e-5
    assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
    assert 0 < entry["peak_fraction"] < 1.5
    assert {"name", "case", "ours", "baseline", "ratio", "peak_fraction"} <= set(entry)


def test_operations_are_those_of_the_formula():
    n, d, k, c, steps = 60, 784, 10, 10, 5
    assert SMALL["mlp"].operations() == (4 * n * d * k + 6 * n * k * c) * steps
    table_five = Case(CNN(), 1, steps=1).operations()
    assert table_five == 4 * 48 * 16 * 225 + 6 * (256 * 32 * 144 + 4608 * 10 + 10 * 10)


def test_there_is_a_case_of_each_kind():
    assert {case.records for case in shadows.CASES if isinstance(case.architecture, MLP)} == {
        1000,
        10_000,
    }
    assert any(isinstance(case.architecture, CNN) for case in shadows.CASES)
    assert any(case.privacy.clips for case in shadows.CASES)


def test_every_way_of_convolutions_ends_with_the_same_weights(monkeypatch):
    monkeypatch.setattr(shadows, "CASES", ())
    small = replace(SMALL["cnn"], models=2)
    monkeypatch.setattr(convolutions, "CASES", (small,))
    monkeypatch.setattr(convolutions, "_REPEATS", 1)
    monkeypatch.setattr(convolutions, "_copy_rate", lambda: 5e9)  # measured with half a gigabyte
    (entry,) = run_benches("shadows")
    assert entry["largest_difference"] < 1e-5
    assert entry["copy_gbytes"] == 5
    assert len(entry["seconds_a_model"]) == 5
    assert entry["best"] in entry["seconds_a_model"]
    assert entry["ours"] == pytest.approx(min(entry["seconds_a_model"].values()), abs=1e-5)
    assert entry["operations"] == small.operations()
    assert entry["roof_seconds"] >= entry["operations"] / entry["peak_gflops"] / 1e9 * 0.999


@pytest.mark.slow
def test_the_rate_of_copies():
    assert 1e8 < convolutions._copy_rate() < 1e13


def test_beside_a_busy_process(monkeypatch):
    monkeypatch.setattr(busy, "CASE", Case(MLP((6,), (5,), 10), 20, steps=2, models=4))
    monkeypatch.setattr(busy, "_REPEATS", 1)
    (entry,) = run_benches("shadows", busy=True)
    assert set(entry["models_a_second"]) == {
        f"{how} {kind}" for how in ("idle", "busy") for kind in ("processes", "threads")
    }
    rates = entry["models_a_second"]
    assert entry["slowdown"] == pytest.approx(
        rates["idle processes"] / rates["busy processes"], rel=0.1
    )
    for name in ("margin", None):
        with pytest.raises(ExhumeError, match="^--busy: only of bench shadows, not of"):
            run_benches(name, busy=True)
