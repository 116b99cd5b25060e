from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from exhume.bench import run_benches, updates
from exhume.cli import app


def test_the_entry_of_decoding(monkeypatch):
    small = updates.DecodingCase("digits", batch=2, matching=5, decoding=(1, 50, 200))
    monkeypatch.setattr(updates, "DECODING_CASES", (small,))
    result = CliRunner().invoke(app, ["bench", "update", "--json"])
    assert result.exit_code == 0, result.output
    (entry,) = json.loads(result.stdout)
    assert entry["name"] == "update"
    assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
    assert entry["ours_reached"]
    assert entry["ours_psnr"] >= entry["baseline_psnr"]
    assert entry["ours_steps"] in (50, 200)
    assert entry["ours_all_tries"] > entry["ours"]


def test_a_bar_that_is_not_reached_is_said(monkeypatch):
    small = updates.DecodingCase("digits", batch=2, matching=20, decoding=(1,))
    monkeypatch.setattr(updates, "DECODING_CASES", (small,))
    (entry,) = run_benches("update")
    assert not entry["ours_reached"]
    assert entry["ours_psnr"] < entry["baseline_psnr"]


def test_the_entry_of_the_span_attack(monkeypatch):
    monkeypatch.setattr(updates, "SPAN_CASES", (updates.SpanCase(matching=(2, 4)),))
    monkeypatch.setattr(updates, "_REPEATS", 1)
    (entry,) = run_benches("gradient")
    assert entry["ratio"] == pytest.approx(entry["baseline"] / entry["ours"])
    assert entry["ours_psnr"] > entry["bar"]
    assert entry["baseline_steps"] == 4
    assert not entry["baseline_reached"]
