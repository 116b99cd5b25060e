"""Results that were made at another commit: kept in this tree if the study still measures the same.

A long run goes on in a clone of its own while the code moves on. Its result belongs here as long as the
study's smoke metrics at its commit are those of this tree.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from exhume.core.contract import ExhumeError
from exhume.core.results import StudyResult, read_result
from exhume.report.folder import RunFolder

_TIMED = ("second", "hours")  # metrics of a clock
_CLOSE = 1e-4  # of two metrics, relative: another machine or number of threads rounds otherwise


def keep_result(run: Path, kept: Path) -> StudyResult:
    """Store a finished run's result in the folder `kept`. Its commit must be in this checkout's history."""
    result = read_result(run / "result.json")
    if not isinstance(result, StudyResult):
        raise ExhumeError(f"{run} holds no result of a study")
    commit = str(result.environment.get("commit", ""))
    if not commit or commit.endswith("-dirty"):
        raise ExhumeError(f"{run}: made at {commit or 'no commit'}; run it in a clean clone")
    root = Path(__file__).parents[3]
    with tempfile.TemporaryDirectory() as place:
        archive = _ran("git", "-C", str(root), "archive", commit, "src")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(place, filter="data")
        there, here = (_smoke(tree, result.study) for tree in (Path(place), root))
    if apart := different(there, here):
        raise ExhumeError(
            f"{run}: since {commit} {result.study} measures otherwise at scale smoke: "
            f"{', '.join(apart[:3])}; run it again"
        )
    kept.mkdir(parents=True, exist_ok=True)
    RunFolder(kept).write_json(f"{result.study}.json", result.to_json())
    return result


def different(there: Mapping[str, float], here: Mapping[str, float]) -> list[str]:
    """Names of metrics that only one side has, or that are not the same on both; clocks are left out."""
    names = [name for name in {**there, **here} if not any(word in name for word in _TIMED)]
    return [
        name
        for name in names
        if name not in there
        or name not in here
        or not math.isclose(there[name], here[name], rel_tol=_CLOSE, abs_tol=_CLOSE)
    ]


def _smoke(tree: Path, study: str) -> Mapping[str, float]:
    """The study's metrics at scale smoke, by the code of a tree."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        asked = ("study", "run", study, "--scale", "smoke", "--out", str(out))
        _ran(sys.executable, "-m", "exhume", *asked, path=tree / "src")
        result = read_result(out / "result.json")
    assert isinstance(result, StudyResult)
    return result.metrics


def _ran(program: str, *arguments: str, path: Path | None = None) -> bytes:
    """What a program prints. path: where Python finds exhume."""
    found = shutil.which(program)
    if found is None:
        raise ExhumeError(f"{program} is not installed")
    own = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run([found, *arguments], capture_output=True, check=False, env=own)  # noqa: S603
    if done.returncode:
        raise ExhumeError(f"{program}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout
