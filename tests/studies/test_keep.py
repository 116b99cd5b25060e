"""Results of other commits are kept where the study still measures the same."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from exhume.core.contract import ExhumeError
from exhume.core.results import StudyResult, read_result
from exhume.report.folder import RunFolder
from exhume.studies import keep

HEAD = ["git", "rev-parse", "HEAD"]
RESULT = StudyResult("gradient-deep", "cpu", 0, "S", (), {"a": 1.0}, environment={})


def run_of(tmp_path, commit):
    folder = RunFolder.create(tmp_path / "run")
    made = replace(RESULT, environment={"commit": commit})
    folder.write_json("result.json", made.to_json())
    return folder.path


@pytest.fixture
def head():
    root = Path(__file__).parents[2]
    return subprocess.run(HEAD, cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def test_metrics_agree_but_for_clocks_and_rounding():
    there = {"mse": 0.5, "seconds": 3.0, "arm.fit_seconds": 1.0}
    assert keep.different(there, {"mse": 0.500001, "seconds": 9.0}) == []
    assert keep.different(there, {"mse": 0.51, "seconds": 3.0}) == ["mse"]
    assert keep.different(there, {**there, "more": 0.0}) == ["more"]
    assert keep.different({"mse": float("nan")}, {"mse": 1.0}) == ["mse"]


@pytest.mark.parametrize("commit", ["", "0123456789ab-dirty"])
def test_a_result_of_no_commit_is_refused(tmp_path, commit):
    with pytest.raises(ExhumeError, match="run it in a clean clone"):
        keep.keep_result(run_of(tmp_path, commit), tmp_path / "kept")


def test_a_study_that_measures_otherwise_by_now_is_refused(tmp_path, head, monkeypatch):
    mine = Path(keep.__file__).parents[3]
    monkeypatch.setattr(keep, "_smoke", lambda tree, study: {"a": float(tree == mine)})
    with pytest.raises(ExhumeError, match="gradient-deep measures otherwise at scale smoke: a;"):
        keep.keep_result(run_of(tmp_path, head), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
def test_a_study_that_still_measures_the_same_is_kept(tmp_path, head):
    keep.keep_result(run_of(tmp_path, head), tmp_path / "kept")
    assert read_result(tmp_path / "kept" / "gradient-deep.json").metrics == {"a": 1.0}
