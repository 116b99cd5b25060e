"""What a person sees on the console: at once what is wrong, then the plan, progress, the last words."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from exhume.cli import app
from exhume.cli.frame import EVERY, ProgressLines, study_names
from exhume.core.results import FixRow, ReleaseRow, Result, Verdict
from exhume.models.activations import ACTIVATIONS
from exhume.readers.named import SETS
from exhume.report.meaning import next_steps
from exhume.settings.sections import ACTIVATIONS as NAMED_ACTIVATIONS
from exhume.settings.sources import IMAGE_SETS, PAIR_SETS
from exhume.studies import STUDIES

WRONG = [
    (["audit", "nowhere.toml"], "nowhere.toml: cannot be read"),
    (["audit", "--data", "mnits"], "no such data: 'mnits'; did you mean 'mnist'?"),
    (["audit", "--data", "nowhere/"], "no such file or folder: 'nowhere/'"),
    (["audit", "--data", "digits", "--rate", "-1"], "victim.rate: -1.0 given"),
    (["audit", "--data", "digits", "--activation", "rulu"], "activation: 'rulu' is not one of"),
    (["audit", "--data", "digits", "--network", "rnn"], "network: 'rnn' is not one of mlp, cnn"),
    (
        ["audit", "--data", "digits", "--network", "no.py:f"],
        "network: no.py:f: there is no file no.py",
    ),
    (["audit", "--data", "digits", "--start", "no.pt"], "start: there is no file no.pt"),
    (["audit", "--data", "digits", "--ray", "auto", "--processes", "2"], "exclude each other"),
    (["audit-update", "no.pt", "--model", "a:b"], "update: there is no file no.pt"),
    (["audit-weights", "no.pt"], "checkpoint: there is no file no.pt"),
    (["audit-split", "no.py:f", "--data", "digits"], "model: no.py:f: there is no file no.py"),
    (["report", "nowhere"], "nowhere/result.json: missing"),
    (["compare", "nowhere", "nowhere"], "nowhere/result.json: missing"),
    (["data", "fetch", "mnits"], "did you mean 'mnist'?"),
    (["study", "run", "informed-mnits"], "did you mean 'informed-mnist'?"),
    (["study", "run", "informed-mnist", "--data", "no/"], "no such file or folder: 'no/'"),
    (["study", "figures", "nowhere"], "nowhere/result.json: missing"),
]


def test_what_is_wrong_with_files_and_options_is_said_without_torch(tmp_path):
    """All in one process, which would pay for torch once and then hide it."""
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom exhume.cli import app\n"
        f"for arguments, message in {WRONG!r}:\n"
        "    result = CliRunner().invoke(app, arguments)\n"
        "    assert result.exit_code == 2, (arguments, result.output)\n"
        "    assert message in result.stderr, (arguments, result.stderr)\n"
        "    assert 'torch' not in sys.modules, arguments\n"
    )
    used = _processor_seconds(code, tmp_path)
    assert used < _processor_seconds("import torch", tmp_path)  # all of them together


def _processor_seconds(code: str, folder: Path) -> float:
    """Of a fresh interpreter; the machine's own measure, busy or not."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_version_is_said():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("exhume ")
    assert "torch 2." in result.stdout


def test_names_that_are_known_without_torch_are_those_there_are():
    assert (*IMAGE_SETS, *PAIR_SETS) == tuple(SETS)
    assert set(NAMED_ACTIVATIONS) == set(ACTIVATIONS)
    assert set(STUDIES) <= set(study_names())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def spoken():
    said, clock = [], Clock()
    return said, clock, ProgressLines(said.append, clock)


def test_a_stage_is_said_when_it_begins_every_ten_seconds_and_when_it_ends(spoken):
    said, clock, progress = spoken
    progress("training", 0, 2000)
    for done in (500, 1000, 1500):
        clock.now += EVERY / 2 + 1
        progress("training", done, 2000)
    clock.now += EVERY / 2 + 1
    progress("training", 2000, 2000)
    assert said == [
        "training: 0 of 2,000",
        "training: 1,000 of 2,000 after 12 s, about 12 s left",
        "training: 2,000 of 2,000 in 24 s",
    ]


def test_work_that_reports_nothing_is_said_to_go_on(spoken):
    said, clock, progress = spoken
    progress("fitting", 0, 1)
    progress.tick()
    assert said == []
    clock.now = EVERY + 1
    progress.tick()
    progress.tick()
    clock.now = 3 * EVERY
    progress("fitting", 1, 1)
    progress.tick()
    assert said == ["fitting: 0 of 1 after 11 s, at work", "fitting: 1 of 1 in 30 s"]


def test_work_of_an_earlier_run_does_not_make_the_rest_look_quick(spoken):
    said, clock, progress = spoken
    progress("training", 900, 1000)
    clock.now = 20.0
    progress("training", 950, 1000)
    assert said[-1] == "training: 950 of 1,000 after 20 s, about 20 s left"


def test_pieces_that_come_at_once_in_the_beginning_do_not_count_as_speed(spoken):
    said, clock, progress = spoken
    progress("training", 0, 1000)
    for done in (300, 600, 900):
        clock.now += 0.1
        progress("training", done, 1000)
    clock.now += EVERY
    progress.tick()
    assert said[-1] == "training: 900 of 1,000 after 10 s, at work"
    clock.now += EVERY
    progress("training", 950, 1000)
    assert said[-1] == "training: 950 of 1,000 after 20 s, about 20 s left"


def test_quick_pieces_still_have_an_estimate(spoken):
    said, clock, progress = spoken
    for done in range(121):
        progress("training", done, 1000)
        clock.now += 0.1
    assert said[-1] == "training: 101 of 1,000 after 10 s, about 90 s left"


def test_waiting_for_a_large_piece_does_not_make_the_rest_longer(spoken):
    said, clock, progress = spoken
    progress("training", 0, 400)
    clock.now = 60.0
    progress("training", 64, 400)
    for clock.now in (80.0, 100.0):
        progress.tick()
    assert said[-2:] == [
        "training: 64 of 400 after 80 s, about 5 min left",
        "training: 64 of 400 after 2 min, about 5 min left",
    ]
    clock.now = 1000.0
    progress.tick()
    assert said[-1].endswith("about 32 s left")


def finished(word, *fixes, kind="weights"):
    row = ReleaseRow(kind, "it", word, "", "")
    return Result("", "", 0, Verdict(word, "", ""), fixes=fixes, releases=(row,))


def first_step(result):
    return next_steps(result)[0]


def test_every_verdict_has_a_next_step():
    fix = FixRow("dp", "it", "noise", "", "", "0 of 9", tried=True, verdict="leaks")
    stops = replace(fix, verdict="no leak found")
    assert "--try-fixes shows what stops it" in first_step(finished("leaks"))
    assert "none of the fixes" in first_step(finished("leaks", fix))
    assert "apply a fix that stops it" in first_step(finished("leaks", fix, stops))
    assert "do not release this file" in first_step(finished("leaks", kind="checkpoint"))
    assert "keep secret" in first_step(finished("at risk"))
    assert "exhume compare OLD NEW" in first_step(finished("no leak found"))
    assert "nothing is known" in first_step(finished("not audited"))
    more = replace(finished("not audited"), next="the same command with --budget 9m")
    assert first_step(more) == more.next


def test_an_audit_says_its_plan_its_cost_and_what_comes_next(tmp_path):
    sizes = "--fixed 50 --targets 2 --shadows 20 --steps 5 --hidden 4 --threads 1".split()
    done = CliRunner().invoke(
        app, ["audit", "--data", "digits", *sizes, "--out", str(tmp_path / "run")]
    )
    plan, *rest = done.stderr.splitlines()
    assert plan == "exhume: plan: the trained weights (seed 0, threads 1)"
    assert rest[0].startswith(
        "exhume:   records: 250 of the 1,797 in digits: 50 known to the adversary, 2 att"
    )
    assert rest[1].startswith(
        "exhume:   1,797 records; each model sees 50 known records and 1 target; change with --fixed"
    )
    assert "operations" not in done.stderr
    assert "of memory" not in done.stderr  # it is little
    assert "CPU seconds (no limit)" in done.stderr
    assert "exhume: training shadow models: 20 of 20 in " in done.stderr
    assert done.stderr.splitlines()[-1].endswith("CPU seconds")
    *_, after, last = done.stdout.splitlines()
    assert after.startswith("next: ")
    assert last == f"report: {tmp_path / 'run' / 'report.html'}"
