from __future__ import annotations

import pytest

from exhume.bench import margin, run_benches


def test_both_compute_the_same(monkeypatch):
    small = margin.Case("small", records=6, candidates=8, width=20, inputs=(30,), classes=3)
    first = margin.Case("first", 6, 8, 20, (1.0,), inputs=(30,), classes=3)
    monkeypatch.setattr(margin, "CASES", (small, first))
    monkeypatch.setattr(margin, "_REPEATS", 2)
    entries = run_benches("margin")
    assert len(entries) == 2
    for entry in entries:
        assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
        assert entry["loss_difference"] < 1e-5
        assert entry["gradient_difference"] < 1e-5
        assert entry["multiplier_difference"] < 1e-5
