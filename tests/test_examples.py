"""The examples run, and what they say to run next runs too."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import torch
from typer.testing import CliRunner

from exhume.cli import app

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_checkpoint_to_be_audited(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLES / "checkpoint.py"))["main"]
    state = torch.random.get_rng_state()
    main("digits", tmp_path / "work", each=2, width=60, decoys=100)
    torch.random.set_rng_state(state)
    command = shlex.split(capsys.readouterr().out)
    assert command[:2] == ["exhume", "audit-weights"]
    quick = ["--restarts", "2", "--steps", "30"]
    result = CliRunner().invoke(app, [*command[1:], *quick])
    assert result.exit_code == 0, result.output
    assert "training images" in result.stdout
    assert (tmp_path / "work" / "run" / "report.html").exists()


def test_a_network_to_be_split(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NET", "1,10,4")
    main = runpy.run_path(str(EXAMPLES / "split_resnet.py"))["main"]
    state = torch.random.get_rng_state()
    main("digits", tmp_path / "work", width=4, epochs=2, records=500)
    torch.random.set_rng_state(state)
    setting, *command = shlex.split(capsys.readouterr().out)
    assert (setting, command[:2]) == ("NET=1,10,4", ["exhume", "audit-split"])
    quick = ["--attack-epochs", "1", "--channels", "4", "--targets", "30", "--held", "100"]
    result = CliRunner().invoke(app, [*command[1:], *quick])
    assert result.exit_code == 2, result.output  # shadows of one epoch are no attackers
    assert "so they are no attackers" in result.stdout
    assert (tmp_path / "work" / "run" / "report.html").exists()
