from __future__ import annotations

import pytest

from exhume.bench import run_benches, shadows


def test_the_entry_and_that_both_sides_agree(monkeypatch):
    for name, value in {"_RECORDS": 60, "_STEPS": 5, "_MODELS": 4, "_REPEATS": 2}.items():
        monkeypatch.setattr(shadows, name, value)
    (entry,) = run_benches("shadows")
    assert entry["largest_difference"] < 1e-5
    assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
    assert 0 < entry["peak_fraction"] < 1.5
    assert {"name", "ours", "baseline", "ratio", "peak_fraction"} <= set(entry)
