"""--no-code: nothing that somebody else's brief names is run, whatever the command."""

from __future__ import annotations

import os
import pickle
from contextlib import chdir

import numpy as np
import pytest
from typer.testing import CliRunner

from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.core.notation import NO_CODE
from exhume.core.own_code import named

SPY = """
import pathlib
pathlib.Path("ran").touch()
"""
BRIEFS = {
    "network": '[data]\nsource = "few.npz"\n[victim]\nnetwork = "spy.py:make"\n',
    "train": '[data]\nsource = "few.npz"\n[victim]\ntrain = "spy.py:make"\n',
    "source": '[data]\nsource = "spy.py:make"\n',
    "module": '[data]\nsource = "few.npz"\n[victim]\nnetwork = "spy:make"\n',
    "trust": '[checkpoint]\nfile = "net.pt"\nshape = [4]\ntrust = true\n',
    "split": '[data]\nsource = "few.npz"\n[split]\nmodel = "spy.py:make"\n',
    "update": '[data]\nsource = "few.npz"\n[update]\nmodel = "spy.py:make"\n',
}
COMMANDS = (
    *(f"audit {name}.toml --out run --no-code" for name in BRIEFS),
    "--no-code audit network.toml --out run",
    "audit network.toml --dry-run --no-code",
    "audit-update g.safetensors --model spy.py:make --no-code --out run",
    "audit-weights net.pt --trust --shape 4 --no-code --out run",
    "audit-split spy.py:make --data few.npz --no-code --out run",
    "--no-code study run informed-mnist --scale smoke --data spy.py:make --out run",
)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("no-code")
    (folder / "spy.py").write_text(SPY)
    np.savez(folder / "few.npz", x=np.zeros((60, 4), np.float32), y=np.arange(60) % 2)
    (folder / "net.pt").write_bytes(pickle.dumps(Bomb()))
    (folder / "g.safetensors").write_bytes(b"")
    for name, text in BRIEFS.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_run(place, command):
    with chdir(place):
        result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2
    assert NO_CODE in result.output
    assert "Traceback" not in result.output
    assert not (place / "ran").exists()
    assert NO_CODE not in os.environ


def test_the_environment_says_so_too(place, monkeypatch):
    monkeypatch.setenv(NO_CODE, "1")
    with chdir(place), pytest.raises(ExhumeError, match="would run code"):
        named("spy.py:make", "model")


def test_our_own_networks_are_no_code(tmp_path):
    brief = tmp_path / "ours.toml"
    brief.write_text('[data]\nsource = "digits"\n[victim]\nnetwork = "mlp"\n')
    done = CliRunner().invoke(
        app, ["--no-code", "audit", str(brief), "--threads", "1", "--dry-run"]
    )
    assert done.exit_code == 0, done.output
