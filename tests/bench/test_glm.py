from __future__ import annotations

import sys

import pytest

from exhume import bench
from exhume.bench import glm, run_benches
from exhume.core.contract import ExhumeError


def test_the_entry(monkeypatch):
    """A stand-in for the toolbox: it answers with a known record and a wrong label."""
    monkeypatch.setattr(glm, "_TARGETS", 2)
    monkeypatch.setattr(glm, "_REPEATS", 2)

    def naive(model, fixed):
        return fixed.inputs[0], -1

    monkeypatch.setattr(glm, "toolbox", lambda: naive)
    (entry,) = run_benches("glm")
    assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
    assert entry["ours_largest_error"] < 1e-8
    assert entry["ours_labels_right"] == 2
    assert entry["baseline_labels_right"] == 0
    assert entry["baseline_largest_error"] > 0.1


def test_without_the_toolbox_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "art", None)
    with pytest.raises(ExhumeError, match=r"not installed .*pip install 'exhume\[art\]'"):
        run_benches("glm")


def test_a_missing_rival_does_not_cost_the_other_benches(monkeypatch):
    monkeypatch.setitem(sys.modules, "art", None)
    for name in set(bench.BENCHES) - {"glm"}:
        monkeypatch.setitem(bench.BENCHES, name, lambda progress, name=name: [{"name": name}])
    first, second, *_ = run_benches()
    assert first == {"name": "shadows"}
    assert "not installed" in second["skipped"]


@pytest.mark.slow
def test_the_toolbox_itself(monkeypatch):
    pytest.importorskip("art")
    monkeypatch.setattr(glm, "_TARGETS", 1)
    (entry,) = run_benches("glm")
    assert entry["ratio"] > 100
    assert entry["ours_largest_error"] <= entry["baseline_largest_error"]
