"""The run folder: one process at a time, one version at a time."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest

from exhume.core.contract import ExhumeError
from exhume.report import folder as folders
from exhume.report.folder import LOCK, MARKER, RunFolder, version_now


def other_version(path, **changes):
    content = {"note": "", "version": "exhume 0.0.9, torch 2.6, code abc", "before": "", **changes}
    (path / MARKER).write_text(json.dumps(content))


def test_the_marker_names_the_version(tmp_path):
    RunFolder.create(tmp_path / "run")
    marker = json.loads((tmp_path / "run" / MARKER).read_text())
    assert marker["version"] == version_now()
    assert "torch" in marker["version"]
    assert "code" in marker["version"]
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_work_of_another_version_is_refused_unless_asked_for(tmp_path):
    run = RunFolder.create(tmp_path / "run")
    other_version(run.path)
    assert RunFolder.create(run.path).resumed_from == ""  # no work in it yet
    run.write_json("result.json", {})
    other_version(run.path)
    with pytest.raises(ExhumeError, match=r"another version \(exhume 0\.0\.9.*--resume-anyway"):
        RunFolder.create(run.path)
    mixed = RunFolder.create(run.path, resume_anyway=True)
    assert mixed.resumed_from == "exhume 0.0.9, torch 2.6, code abc"
    again = RunFolder.create(run.path)  # it is mixed now, and stays so
    assert again.resumed_from == mixed.resumed_from


def test_a_marker_without_a_name_is_an_earlier_version(tmp_path):
    run = RunFolder.create(tmp_path / "run")
    run.write_json("result.json", {})
    (run.path / MARKER).write_text("A run folder of exhume.\n")
    with pytest.raises(ExhumeError, match="an earlier one that left no name"):
        RunFolder.create(run.path)


def test_the_code_decides_the_version(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "version_now", lambda: "exhume 0.1, torch 2, code other")
    run = RunFolder.create(tmp_path / "run")
    run.write_json("result.json", {})
    monkeypatch.undo()
    with pytest.raises(ExhumeError, match="code other"):
        RunFolder.create(run.path)


def second(path, said):
    def progress(stage, done, total):
        said.put((stage, done))

    with RunFolder.claimed(path, progress=progress):
        said.put(("in", os.getpid()))


def test_a_second_process_waits_for_the_first(tmp_path):
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    with RunFolder.claimed(tmp_path / "run"):
        process = context.Process(target=second, args=(tmp_path / "run", said))
        process.start()
        stage, done = said.get(timeout=600)
        assert (stage.startswith("waiting for another process"), done) == (True, 0)
        assert said.empty()
    assert said.get(timeout=600)[1] == 1  # the wait is over
    assert said.get(timeout=600) == ("in", process.pid)
    process.join()


@pytest.mark.parametrize(
    "left", [(f".{MARKER}.0123abcd.part",), (LOCK,), (LOCK, f".{MARKER}.0123abcd.part")]
)
def test_a_folder_killed_while_its_marker_was_written_is_taken_up(left, tmp_path):
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).touch()
    with RunFolder.claimed(tmp_path / "run") as folder:
        assert sorted(p.name for p in folder.path.iterdir()) == sorted([MARKER, LOCK])


@pytest.mark.parametrize("name", ["notes.txt", ".notes.0123abcd.part", f".{MARKER}.part"])
def test_a_folder_with_anything_else_is_left_as_it_is(name, tmp_path):
    (tmp_path / f".{MARKER}.0123abcd.part").touch()
    (tmp_path / name).write_text("mine")
    with pytest.raises(ExhumeError, match="it holds other files"), RunFolder.claimed(tmp_path):
        pass
    assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / LOCK).exists()


def test_leftovers_go_once_the_folder_is_ours(tmp_path):
    with RunFolder.claimed(tmp_path / "run") as folder:
        folder.write_json("result.json", {})
    for place in (tmp_path / "run", tmp_path / "run" / "shards" / "deep"):
        place.mkdir(parents=True, exist_ok=True)
        (place / ".result.json.0123abcd.part").touch()
    with RunFolder.claimed(tmp_path / "run"):
        assert not list((tmp_path / "run").rglob("*.part"))
        for path in (tmp_path / "run").iterdir():
            assert path.is_dir() or path.stat().st_mode & 0o777 == 0o600, path


def test_a_link_is_no_run_folder_and_its_target_is_left_as_it_is(tmp_path):
    target = tmp_path / "shared"
    target.mkdir(mode=0o755)
    (tmp_path / "run").symlink_to(target)
    with pytest.raises(ExhumeError, match="it is a link"):
        RunFolder.create(tmp_path / "run")
    assert target.stat().st_mode & 0o777 == 0o755
    assert not list(target.iterdir())
