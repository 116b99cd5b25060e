from __future__ import annotations

import pytest

from exhume.bench import guard, run_benches


def test_what_leaks_is_stopped_and_what_is_defended_passes(monkeypatch):
    small = guard.GuardCase("mlp", batches=(2,), weak=(0.0,), strong=(50.0,), matching=100)
    monkeypatch.setattr(guard, "CASES", (small,))
    (entry,) = run_benches("guard")
    assert (entry["leaking"], entry["leaking_passed"]) == (1, 0)
    assert (entry["defended"], entry["defended_passed"]) == (2, 2)
    assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
    assert entry["ours_ms"] == pytest.approx(1000 * entry["ours"])
