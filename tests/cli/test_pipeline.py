"""What runs in a pipeline: the action, the GitLab job, and options as Americans spell them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from exhume.cli import app
from exhume.cli.audits import _DOORS

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pipeline"


def offline() -> bool:
    cut = shutil.which("unshare")
    if cut is None:
        return False
    return subprocess.run([cut, "--map-root-user", "--net", "true"], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not offline(), reason="this machine lets nobody cut the network off")
def test_the_action_audits_without_network(tmp_path):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = (s for s in action["runs"]["steps"] if s.get("name") == "Audit")
    given = {name: values["default"] for name, values in action["inputs"].items()}
    named = re.compile(r"\$\{\{ inputs\.([\w-]+) \}\}")
    env = {k: named.sub(lambda found: given[found[1]], v) for k, v in step["env"].items()}
    shutil.copy(EXAMPLE / "audit.toml", tmp_path)
    program = tmp_path / "bin" / "exhume"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m exhume "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    home = {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        check=False,
        env=os.environ | home | env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr  # it leaks
    for name in ("exhume.xml", "exhume.sarif", "exhume-run/report-redacted.html"):
        assert (tmp_path / name).stat().st_size > 100


def test_the_commands_of_the_example_are_ours():
    job = yaml.safe_load((EXAMPLE / ".gitlab-ci.yml").read_text())["exhume"]
    texts = [*job["script"], (EXAMPLE / "README.md").read_text(), (ROOT / "action.yml").read_text()]
    shown = CliRunner().invoke(app, ["audit", "--help"], env={"COLUMNS": "160"}).output
    for text in texts:
        called = re.findall(r"\baudit \S+ --budget .*?--out exhume-run", text, re.DOTALL)
        assert called
        for option in re.findall(r"--[a-z-]+", " ".join(called)):
            assert option in shown, option


def test_american_spellings(tmp_path):
    (tmp_path / "a.toml").write_text(
        '[data]\nsource = "digits"\n[victim]\noptimizer = "sgd"\nbatch = 9\n'
    )
    plans = [
        CliRunner().invoke(app, ["audit", *given, "--threads", "1", "--dry-run", "--json"])
        for given in (
            ["--data", "digits", "--batch", "9", "--optimizer", "sgd"],
            ["--data", "digits", "--batch", "9", "--optimiser", "sgd"],
            [str(tmp_path / "a.toml")],
        )
    ]
    assert not any(plan.exit_code for plan in plans), plans[0].output
    assert len({plan.stdout for plan in plans}) == 1


@pytest.mark.parametrize("door", _DOORS, ids=lambda door: door.name)
def test_options_stand_in_groups(door):
    """No panel of the help has more than a screen can hold."""
    shown = CliRunner().invoke(app, [door.name, "--help"], env={"COLUMNS": "160"}).output
    panels = re.split(r"^╭─ (.*?) ─+╮$", shown, flags=re.MULTILINE)[1:]
    sizes = {
        name: len(re.findall(r"^│ {1,4}--\w", body, re.MULTILINE))
        for name, body in zip(panels[::2], panels[1::2], strict=True)
    }
    assert sizes["Options"] <= 2
    assert {"Your records", "Output", "Gates, for a pipeline"} <= set(sizes) or door.name in (
        "audit-split",
    )
    assert max(sizes.values()) <= 17, sizes
