from __future__ import annotations

import pytest

from exhume.bench import gradient, run_benches


def test_the_entry(monkeypatch):
    monkeypatch.setattr(gradient, "_STEPS", (2, 4))
    monkeypatch.setattr(gradient, "_REPEATS", 1)
    (entry,) = run_benches("gradient")
    assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
    assert entry["ours_psnr"] > entry["bar"]
    assert entry["baseline_steps"] == 4
    assert not entry["baseline_reached"]
