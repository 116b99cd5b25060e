"""A process for each thread, where the work is worth their start: decided once, said, and the same bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from exhume.cli import app
from exhume.core.contract import Key
from exhume.models.cnn import CNN
from exhume.store.memory import memory_free
from exhume.store.scale import (
    HERE,
    Cores,
    Processes,
    Work,
    place,
    run_jobs,
    spread_over,
    workers_for,
)
from exhume.store.shards import NullStore
from exhume.train import fleet
from exhume.train.fleet import fleet_work, train_fleet
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

jobs = pytest.importorskip("local_jobs")
LONG = Work(jobs=6, seconds=1e4, fit=9)


@pytest.fixture(autouse=True)
def workers_know_the_jobs(monkeypatch):
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def cores():
    with spread_over(Cores()):
        yield


@pytest.mark.parametrize(
    ("work", "threads", "expected"),
    [
        (LONG, 4, 4),
        (LONG, 1, 1),  # --threads 1 is one busy core
        (Work(jobs=3, seconds=1e4, fit=9), 4, 3),
        (Work(jobs=6, seconds=1e4, fit=2), 4, 2),
        (Work(jobs=6, seconds=1e4, fit=0), 4, 1),
        (Work(jobs=6, seconds=5.0, fit=9), 4, 1),
        (None, 4, 1),
    ],
)
def test_how_many_processes(cores, work, threads, expected):
    assert workers_for(work, threads) == expected


def test_a_given_number_of_processes_is_kept_to_unless_they_do_not_fit():
    with spread_over(Processes(3)):
        assert workers_for(None, 1) == 3
        assert workers_for(Work(jobs=1, seconds=0.0, fit=2), 1) == 2
    with spread_over(HERE):
        assert workers_for(LONG, 8) == 1


def test_short_work_stays_here_and_long_work_does_not(cores, tmp_path):
    torch.set_num_threads(2)
    short = Work(jobs=2, seconds=0.1, fit=9)
    here = [
        result for _, result in run_jobs(jobs.who, range(2), shared=None, threads=1, work=short)
    ]
    assert here == [(os.getpid(), 1)] * 2
    assert torch.get_num_threads() == 2
    seen = run_jobs(jobs.meets, range(6), shared=str(tmp_path), threads=1, work=LONG)
    found = [result for _, result in seen]
    assert len({pid for pid, _ in found}) == 2
    assert os.getpid() not in {pid for pid, _ in found}
    assert {threads for _, threads in found} == {1}


@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_work_of_unknown_length_is_timed_by_its_first_job(cores, monkeypatch, seconds):
    torch.set_num_threads(2)
    times = iter([0.0, 0.0, seconds])  # what needs no work is not timed
    monkeypatch.setattr("exhume.store.scale.time.process_time", lambda: next(times, 0.0))
    unknown = Work(jobs=4, seconds=None, fit=9)
    stream = iter([None, 1, 2, None, 3])
    found = dict(run_jobs(jobs.who, stream, shared=None, threads=1, work=unknown))
    assert [found[index] is None for index in range(5)] == [True, False, False, True, False]
    assert found[1] == (os.getpid(), 1)  # the first that there is
    assert (found[2][0] == os.getpid()) == (found[4][0] == os.getpid()) == (seconds == 0.0)


def test_nothing_known_is_done_here_and_the_place_is_recorded(cores):
    assert dict(run_jobs(jobs.who, [1], shared=None))[0][0] == os.getpid()
    assert place() == {"where": "this process, and a process for each thread where it pays"}


def test_convolutions_have_the_same_bits_in_any_number_of_threads_and_processes(
    make_records, monkeypatch
):
    """With two threads in one chunk they differed by 1e-7."""
    key, cnn = Key.from_seed(0), CNN((3, 16, 16), (8, 9), (4, 3), (2, 1))
    records = make_records(100, (3, 16, 16), 10, key)
    recipe = FullBatch(cnn, Descent(3, momentum=0.9))

    def trained():
        extra = records[:6].one_each()
        common = {"key": key, "store": NullStore(), "chunk": 2, "stage": "s"}
        return torch.cat(list(train_fleet(recipe, cnn.initial(key), records, extra, **common)))

    torch.set_num_threads(1)
    one = trained()
    torch.set_num_threads(2)
    assert torch.equal(one, trained())
    monkeypatch.setattr("exhume.store.scale._WORTH", 0.0)
    with spread_over(Cores()):
        monkeypatch.setattr(fleet, "_fit", None)  # it must not be done here
        with pytest.raises(Exception, match="NoneType"):
            trained()
        monkeypatch.undo()
        monkeypatch.setattr("exhume.store.scale._WORTH", 0.0)
        assert torch.equal(one, trained())


def test_a_fleet_says_what_it_takes(monkeypatch):
    recipe = FullBatch(CNN(), Descent(100))
    monkeypatch.setattr(fleet, "memory_free", lambda: 8e9)
    few, many = fleet_work(recipe, 100, 65, 64), fleet_work(recipe, 100, 130, 64)
    assert (few.jobs, many.jobs) == (2, 3)
    assert many.seconds == pytest.approx(2 * few.seconds)
    size = recipe.bytes_per_model(101)
    assert few.fit == int(0.8 * 8e9 // (64 * size + (400 << 20)))
    monkeypatch.setattr(fleet, "memory_free", lambda: 1e8)
    assert fleet_work(recipe, 100, 65, 64).fit == 0


def test_free_memory_is_what_the_machine_says(tmp_path):
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:  9000 kB\nMemAvailable:  1000 kB\n")
    assert memory_free(told) == 1000 * 1024
    assert memory_free(tmp_path / "none") > 1e6


def test_the_plan_says_where_models_are_trained(monkeypatch):
    """As many processes as threads; of one thread, or a short work, this process."""
    monkeypatch.setattr(fleet, "memory_free", lambda: 1e12)

    def line(*more):
        given = ["audit", "--data", "digits", "--shadows", "130", "--dry-run", *more]
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 0, result.output
        return next(row for row in result.stdout.splitlines() if "models are trained in" in row)

    long = ("--hidden", "2000", "--steps", "3000")
    assert (
        line(*long, "--threads", "2") == "  models are trained in 2 processes with one thread each"
    )
    assert line(*long, "--threads", "1") == "  models are trained in this process, in one thread"
    assert line("--threads", "2") == "  models are trained in this process, in one thread"
