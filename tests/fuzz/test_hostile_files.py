"""Hostile files of every kind through the real command line: no traceback, little memory, nothing obeyed.

Each case is made from its kind and its number alone (`hostile_files.py`, `hostile_runs.py`), so that
`pt:7` is the same file every time. The commands run in a process whose address space is limited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MOST = (
    512  # MiB that all cases of a process may take beyond what it has once everything is imported
)
STEERING = set(map(chr, (*range(9), *range(11, 32), *range(127, 160), 0x202E)))
FILES = (
    *("pt", "safetensors", "npz", "npy", "skops", "csv", "idx", "folders", "hub", "toml"),
    *("recordings", "result", "evidence"),
)
MANY = {**dict.fromkeys(FILES, 30), "runs": 12}  # 402 files
FEW = (
    *(f"{kind}:0:1" for kind in FILES),
    # cases that once ended in a traceback
    *("npz:1:1", "npz:7:1", "npy:2:1", "npy:3:1"),
    *("skops:6:1", "skops:157:1", "skops:179:1"),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A finished run, in which a file is changed at a time."""
    sys.path.insert(0, str(HERE))
    from hostile_runs import SMALL
    from typer.testing import CliRunner

    from exhume.cli import app

    out = tmp_path_factory.mktemp("sound") / "run"
    assert "Traceback" not in CliRunner().invoke(app, ["audit", *SMALL, "--out", str(out)]).output
    assert (out / "result.json").exists()
    return out


def given(parts: tuple[str, ...], room: Path, sound: Path) -> list[dict]:
    places = os.pathsep.join((str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places}
    command = [sys.executable, str(HERE / "run_hostile.py"), str(room / "case"), str(sound), *parts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(lines: list[dict], cases: int) -> int:
    """How many were refused."""
    refused = 0
    for line in lines[:-1]:
        text = line["output"]
        assert not line["raised"], line
        assert "Traceback" not in text, line
        assert "defect" not in text, line
        assert line["code"] in (0, 2), line
        assert not STEERING & set(text), line
        assert max(map(len, text.splitlines())) < 1000, line
        refused += line["code"] == 2
    assert len(lines) - 1 == cases
    assert lines[-1]["grown"] < MOST, lines[-1]
    return refused


def test_one_of_every_kind_and_what_was_found_before(room, sound):
    assert check(given(FEW, room, sound), len(FEW)) > len(FEW) // 2


@pytest.mark.hostile
@pytest.mark.parametrize("kind", MANY)
def test_many(kind, room, sound):
    parts = (f"{kind}:0:{MANY[kind]}",)
    refused = check(given(parts, room, sound), MANY[kind])
    assert refused > MANY[kind] // 2  # the others are odd, but sound
