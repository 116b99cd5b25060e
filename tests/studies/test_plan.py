"""What a study takes, before it is run."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from exhume.auditing.plan import Stage
from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.studies import STUDIES, study_named
from exhume.studies.plan import plan_lines


def test_hours_fall_with_workers_where_work_spreads():
    spread = Stage("a", 1e12, 10, 20, 7200.0, spreads=True)
    here = Stage("b", None, 10, 0, 7200.0)
    assert (spread.hours(4, 1), here.hours(4, 1), here.hours(4, 2)) == (0.5, 2.0, 1.0)
    assert "operations" not in here.line(1, 1)
    assert "on disk" not in here.line(1, 1)


def test_the_papers_mnist_setting_as_the_page_counts_it():
    """docs/scale-out.md: 32 GFLOP a model without the input's gradient, 1.9 GB of shards."""
    study = study_named("informed-mnist")
    training, fitting = study.stages(study.scales["paper"])
    models = 58_999 + 999 + 1
    assert training.operations == pytest.approx(3 * 2 * 7940 * 10_001 * 100 * models)
    assert training.disk == 4 * 7960 * models
    assert fitting.memory < 16e9
    assert training.spreads
    assert not fitting.spreads


def test_the_command_states_operations_memory_disk_and_hours_and_runs_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = ["study", "run", "informed-cifar10", "--dry-run", "--scale", "paper", "--workers", "64"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    head, *stages, total = result.stdout.splitlines()
    assert head == "plan: informed-cifar10 at scale paper, 64 workers of one thread"
    assert sum("training 53,999 models" in line for line in stages) == 16
    assert sum("training RecoNN" in line for line in stages) == 2
    most = max(
        float(found) for line in stages for found in re.findall(r"([\d.]+) GB of memory", line)
    )
    assert most < 16
    assert f"{most} GB of memory at most in one process" in total
    assert total.endswith("in all")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_counted_is_said():
    with pytest.raises(ExhumeError, match="^--dry-run: informed-init does not count its work"):
        plan_lines(study_named("informed-init"), "paper", 1, 1)
    with pytest.raises(ExhumeError, match="^--scale: informed-dp has smoke, cpu, paper, 'long'"):
        plan_lines(study_named("informed-dp"), "long", 1, 1)
    with pytest.raises(ExhumeError, match="^--workers: at least 1 needed, got -1$"):
        plan_lines(study_named("informed-mnist"), "paper", -1, 1)


def test_every_study_of_the_informed_adversary_follows_the_device():
    rooms = {name: one.run.__module__.split(".")[-2] for name, one in STUDIES.items()}
    informed = [STUDIES[name] for name, room in rooms.items() if room == "informed"]
    informed = [one for one in informed if one.name != "versions"]  # it audits whole releases
    assert len(informed) > 10
    assert [one.name for one in informed if not one.on_device] == []
