from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from exhume.bench import update
from exhume.cli import app


def test_the_entry(monkeypatch):
    small = update.Case("digits", batch=2, matching=5, decoding=(1, 50, 200))
    monkeypatch.setattr(update, "CASES", (small,))
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
    small = update.Case("digits", batch=2, matching=20, decoding=(1,))
    monkeypatch.setattr(update, "CASES", (small,))
    (entry,) = update.run(lambda *_: None)
    assert not entry["ours_reached"]
    assert entry["ours_psnr"] < entry["baseline_psnr"]
