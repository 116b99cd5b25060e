"""A server that chooses the weights, through the command line: beside the verdict, never in it."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from exhume.cli import app

MODEL = """
import torch
from torch import nn

def tanh():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 10))

def deep():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 80), nn.Tanh(), nn.Linear(80, 300), nn.Tanh(), nn.Linear(300, 10)
    )

def conv():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 10)
    )
"""
QUICK = ["--threads", "1", "--search-steps", "1", "--restarts", "1"]
MADE = ["--made", "1", "--batch-size", "4", "--data", "few.npz"]


@pytest.fixture
def invoke(tmp_path, monkeypatch, few_digits):
    monkeypatch.chdir(tmp_path)
    shutil.copy(few_digits, "few.npz")
    (tmp_path / "nets.py").write_text(MODEL)

    def run(*arguments, model):
        named = ["--model", f"nets.py:{model}", "--out", str(tmp_path / "run")]
        done = CliRunner().invoke(app, ["audit-update", *arguments, *named, *QUICK])
        path = tmp_path / "run" / "result.json"
        return done, json.loads(path.read_text()) if path.exists() else {}

    return run


@pytest.mark.parametrize("model", ["tanh", pytest.param("deep", marks=pytest.mark.slow)])
def test_what_it_gets_stands_beside_the_verdict(invoke, tmp_path, model):
    done, result = invoke(*MADE, "--server", "chooses", model=model)
    gets = "A server that chooses the weights gets 4 of 4 records: a client that does not check"
    assert gets in done.stdout, done.output
    server = next(a for a in result["attacks"] if a["id"] == "server")
    assert gets in server["beside"]
    assert server["counts"] is False
    assert server["metrics"]["min_cosine"] == pytest.approx(1, abs=1e-5)
    assert gets not in result["verdict"]["sentence"] + result["verdict"]["detail"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "If the server is malicious" in page
    assert gets in page


def test_it_changes_no_number_of_the_verdict(invoke, tmp_path):
    _, beside = invoke(*MADE, "--server", "chooses", model="conv")
    (tmp_path / "run").rename(tmp_path / "beside")
    done, honest = invoke(*MADE, model="conv")
    sentence = next(a["beside"] for a in beside["attacks"] if a["id"] == "server")
    assert sentence.startswith("A server that chooses the weights was not tried: weights to ask at")
    assert "Beside the verdict" not in done.stdout
    for name in ("verdict", "leak", "releases"):
        assert beside[name] == honest[name], name
    lineups = [
        {a["id"]: a["lineup"] for a in result["attacks"] if a["id"] != "server"}
        for result in (beside, honest)
    ]
    assert lineups[0] == lineups[1]  # its adjusted p-values included


def test_the_plan_names_it(invoke):
    done, _ = invoke(*MADE, "--server", "chooses", "--dry-run", model="tanh")
    assert "A server that chooses the weights" in done.output


def test_weights_of_a_file_are_chosen_already(invoke):
    done, _ = invoke("update.safetensors", "--server", "chooses", model="tanh")
    assert done.exit_code == 2
    assert "server: an update that was sent has its weights; chooses needs --made" in done.output
