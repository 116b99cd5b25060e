"""Commands in the pages: every option exists; the tutorials run as they are written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer.main

from exhume.cli import app
from exhume.cli.frame import study_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "examples").glob("*/README.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="([\w./]+)"')
PLACEHOLDERS = ("[", "…", "|", "<", "...", ", exhume")  # of a line that shows a form, not a command


def commands(page: Path) -> list[str]:
    """Lines of blocks without a language that begin with exhume, whatever is set before it."""
    found = []
    for language, block in BLOCK.findall(page.read_text()):
        if language.strip() in ("", "bash", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                given = re.sub(r"^(\w+=\S+ )+", "", line.strip().split("  ")[0])
                if given.startswith("exhume ") and not any(m in given for m in PLACEHOLDERS):
                    found.append(given)
    return found


WRITTEN = [(page, line) for page in PAGES for line in dict.fromkeys(commands(page))]


@pytest.fixture(scope="module")
def exhume():
    return typer.main.get_command(app)


@pytest.mark.parametrize(
    ("page", "line"), WRITTEN, ids=lambda value: value.stem if isinstance(value, Path) else value
)
def test_every_command_in_a_page_can_be_given(page, line, exhume):
    words = shlex.split(line)[1:]
    command, name = exhume, "exhume"
    while isinstance(command, click.Group) or type(command).__name__ == "TyperGroup":
        if words[0].startswith("-"):
            return
        name, words = words[0], words[1:]
        assert name in command.commands, f"{page.name}: no command {name}"
        command = command.commands[name]
    command.make_context(name, list(words), resilient_parsing=False)
    if line.startswith("exhume study run"):
        assert words[0] in study_names() or words[0].isupper(), line


def test_there_are_commands_to_check():
    assert len(WRITTEN) > 40
    assert len(TUTORIALS) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_is_written(page, tmp_path):
    """Blocks with a title are files, blocks without a language are commands; others are not run."""
    exhume = f"{shlex.quote(sys.executable)} -m exhume"
    paths = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    for language, block in BLOCK.findall(page.read_text()):
        title = TITLE.search(language)
        if title:
            (tmp_path / title[1]).write_text(block)
        elif not language.strip():
            lines = [
                re.sub(
                    r"^python ",
                    f"{shlex.quote(sys.executable)} ",
                    re.sub(r"^exhume ", f"{exhume} ", line),
                )
                for line in block.splitlines()
            ]
            done = subprocess.run(
                ["bash", "-e", "-c", "\n".join(lines)],
                cwd=tmp_path,
                env={**os.environ, **paths},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-2000:]
