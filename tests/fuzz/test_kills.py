"""Audits and studies that are killed at every kind of write: they end with the same bits, and leave nothing.

Killed means SIGKILL, in the middle of opening, writing, syncing, renaming, making or removing, at a moment
that is drawn by the number of the case. The cases are kept: `audit:17` is the same kill every time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FEW = [  # the first one is killed twice: before it renames a file, then before it removes what was left
    ("audit:12:1",),
    pytest.param(("audit:3:1", "gradient-defences:2:1"), marks=pytest.mark.slow),
]
MANY = {  # 115 cases, of one or two kills each
    "audit": ("audit:0:70",),
    "gradient-defences": ("gradient-defences:0:30",),
    "gradient-batch": ("gradient-batch:0:15",),
}


def ended(parts: tuple[str, ...], folder: Path) -> list[dict]:
    places = os.pathsep.join((str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places}
    command = [sys.executable, str(HERE / "run_kills.py"), str(folder), *parts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(lines: list[dict], cases: int) -> int:
    """How many kills there were."""
    code = 0
    for line in lines:
        if "work" in line:
            code = line["code"]
            assert not [name for name in line["files"] if name.endswith(".part")]
            continue
        assert line["code"] == code, line
        assert line["differ"] == [], line  # every file, byte for byte, and no other file
        assert line["readable"] == [], line
        assert line["kills"], line
    assert sum("case" in line for line in lines) == cases
    return sum(line.get("kills", 0) for line in lines)


@pytest.mark.parametrize("parts", FEW)
def test_a_few_kills(parts, tmp_path):
    assert check(ended(parts, tmp_path), len(parts)) >= len(parts)


@pytest.mark.hostile
@pytest.mark.parametrize("work", MANY)
def test_many_kills(work, tmp_path):
    cases = sum(int(part.split(":")[2]) for part in MANY[work])
    assert check(ended(MANY[work], tmp_path), cases) >= cases
