"""The notebooks of the examples still say what the site shows."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"


def shown(content: dict) -> list[str]:
    """What the cells returned or printed."""
    outputs = [o for cell in content["cells"] for o in cell.get("outputs", [])]
    return [str(o.get("text") or o["data"]["text/plain"]) for o in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weights", "updates"])
def test_a_notebook_runs_and_finds_the_same(name, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("run", FOLDER / "run.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    notebook = FOLDER / f"{name}.ipynb"
    kept = shown(json.loads(notebook.read_text()))
    monkeypatch.chdir(tmp_path)
    assert kept
    assert shown(runner.run(notebook)) == kept
