"""What people install is whole: built from the source archive, run far from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command, cwd, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel of the source archive holds, and nothing else of the repository's."""
    place = tmp_path_factory.mktemp("package")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", source / "src", ignore=hidden)
    run("-m", "hatchling", "build", "-t", "sdist", "-d", place, cwd=source)
    shutil.unpack_archive(next(place.glob("*.tar.gz")), place / "unpacked", filter="data")
    unpacked = next((place / "unpacked").iterdir())
    run("-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=unpacked)
    wheel = next(place.glob("*.whl"))
    quick = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    run("-m", "pip", "install", *quick, "--target", place / "site", wheel, cwd=place)
    return place


def test_the_wheel_audits_without_the_repository(installed):
    program = "import exhume; print(exhume.__file__); from exhume.cli import main; main()"
    sizes = ("--fixed", 6, "--targets", 20, "--shadows", 40, "--steps", 10)
    said = run(
        *("-c", program, "audit", "--data", "digits", *sizes, "--threads", 1, "--out", "run"),
        cwd=installed,
        PYTHONPATH=str(installed / "site"),
    )
    where, _, said = said.partition("\n")
    assert Path(where).is_relative_to(installed / "site")
    assert said.startswith("The release leaks: ")
    assert "<html" in (installed / "run" / "report.html").read_text()


def test_every_file_of_the_package_is_in_the_wheel(installed):
    kept = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "exhume").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    there = {
        path.relative_to(installed / "site").as_posix()
        for path in (installed / "site" / "exhume").rglob("*")
        if path.is_file()
    }
    assert kept <= there
