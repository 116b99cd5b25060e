"""Worker processes of this machine: the same bits, nothing lost, nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from exhume.choices import threads_for
from exhume.cli import app
from exhume.core.contract import ExhumeError, Key
from exhume.defences.split.ensembler import Ensembler
from exhume.models.mlp import MLP
from exhume.models.split.networks import ResNet18
from exhume.store.scale import HERE, Processes, place, run_jobs, spread_over, where_now
from exhume.store.shards import FolderStore, NullStore
from exhume.train.fleet import train_fleet
from exhume.train.recipe import FullBatch
from exhume.train.single import Schedule, SplitJob

jobs = pytest.importorskip("local_jobs")


@pytest.fixture(autouse=True)
def workers_know_the_jobs(monkeypatch):
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def two():
    with spread_over(Processes(2)):
        yield


def test_every_job_once_in_two_processes_with_the_callers_threads(two, tmp_path):
    factor = torch.rand(50, 100)
    found = dict(run_jobs(jobs.scaled, [3, None, 4, 5, None, 6], shared=factor))
    assert {i for i, result in found.items() if result is None} == {1, 4}
    assert all(torch.equal(found[i], factor * job) for i, job in ((0, 3), (2, 4), (3, 5), (5, 6)))
    seen = [result for _, result in run_jobs(jobs.meets, range(6), shared=str(tmp_path))]
    assert len({pid for pid, _ in seen}) == 2
    assert os.getpid() not in {pid for pid, _ in seen}
    assert {threads for _, threads in seen} == {torch.get_num_threads()}


def test_no_more_is_begun_than_twice_the_processes(two):
    pulled = []

    def endless():
        for job in range(1000):
            pulled.append(job)
            yield job

    found = run_jobs(jobs.who, endless(), shared=None)
    next(found)
    found.close()
    assert len(pulled) <= 6


def test_a_refusal_is_one_sentence_and_a_bug_keeps_its_traceback(two):
    with pytest.raises(ExhumeError, match="^job 7 will not$"):
        list(run_jobs(jobs.refuses, [7], shared=None))
    with pytest.raises(ZeroDivisionError) as raised:
        list(run_jobs(jobs.fails, [1], shared=None))
    assert "local_jobs.py" in str(raised.value.__cause__)


def test_a_process_that_dies_loses_nothing(two, tmp_path):
    found = dict(run_jobs(jobs.dies_once, range(5), shared=str(tmp_path)))
    assert found == {job: 10 * job for job in range(5)}
    assert (tmp_path / "2").exists()


def test_one_that_always_dies_is_said(two, monkeypatch):
    monkeypatch.setattr("exhume.store.workers.RETRIES", 1)
    with pytest.raises(ExhumeError, match="^a worker process was lost 2 times"):
        list(run_jobs(jobs.dies, [0], shared=None))


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_workers_end_with_the_caller(end, tmp_path):
    code = (
        "import local_jobs, signal\n"
        "from exhume.store.scale import Processes, run_jobs, spread_over\n"
        "if __name__ == '__main__':\n"
        # ignored otherwise where a shell started the tests with &
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    with spread_over(Processes(2)):\n"
        f"        list(run_jobs(local_jobs.naps, range(2), shared={str(tmp_path)!r}))\n"
    )
    main = tmp_path / "main.py"
    main.write_text(code)
    caller = subprocess.Popen([sys.executable, str(main)], stderr=subprocess.DEVNULL)
    marks = _until(lambda: [p.name for p in tmp_path.iterdir() if p.name.isdigit()], 2)
    caller.send_signal(end)
    caller.wait()
    assert _until(lambda: [pid for pid in marks if not Path(f"/proc/{pid}").exists()], 2)


def _until(look, count: int) -> list[str]:
    """What there is to see, once there is enough of it; the limit only ends a test that would never end."""
    limit = time.monotonic() + 600
    while len(found := look()) < count:
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)
    return found


def test_a_fleet_has_the_same_bits_and_is_kept(make_records, tmp_path):
    key, mlp = Key.from_seed(0), MLP((6,), (5,), 3)
    records = make_records(30, (6,), 3, key)

    def trained(store):
        extra = records[:7].one_each()
        parts = train_fleet(
            FullBatch(mlp),
            mlp.initial(key),
            records,
            extra,
            key=key,
            store=store,
            chunk=2,
            stage="s",
        )
        return torch.cat(list(parts))

    here = trained(NullStore())
    with spread_over(Processes(2)):
        there = trained(FolderStore(tmp_path))
    assert torch.equal(here, there)
    assert len(list(tmp_path.iterdir())) == 4


def test_stage_one_has_the_same_bits(make_records):
    key = Key.from_seed(0)
    records = make_records(24, (3, 8, 8), 3, key)
    job = SplitJob(ResNet18((3, 8, 8), 3, 2), "conv1", "pool", records, Schedule(1, 12, 0.05))

    def bodies():
        parts = Ensembler(2, 1).stage_one(job, key=key, store=NullStore())
        return [t for part in parts for t in part.body.state_dict().values()]

    here = bodies()
    with spread_over(Processes(2)):
        there = bodies()
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_the_place_is_recorded_and_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr("exhume.choices._cores", lambda: 8)
    assert threads_for(0) == 8
    with spread_over(Processes(3)):
        assert place() == {"where": "processes of this machine", "processes": 3}
        assert (threads_for(0), threads_for(5)) == (2, 5)
    assert where_now() == HERE


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--processes", "0"], "exhume: processes: at least 1 needed, got 0"),
        (["--processes", "2", "--ray", "auto"], "exhume: --ray and --processes exclude each other"),
    ],
)
def test_what_cannot_be_is_one_sentence(given, said):
    result = CliRunner().invoke(app, ["audit", "--data", "digits", *given])
    assert (result.exit_code, result.stderr.splitlines()) == (2, [said])


def test_the_command_trains_in_processes_and_gives_the_same_result(tmp_path):
    def run(*more):
        out = tmp_path / f"run{len(more)}"
        small = "--fixed 6 --targets 20 --shadows 80 --hidden 8 --steps 10"
        given = ["audit", "--data", "digits", *small.split(), "--threads", "1", "--out", str(out)]
        result = CliRunner().invoke(app, [*given, *more])
        assert result.exit_code == 0, result.output
        return json.loads((out / "result.json").read_text())

    alone, spread = run(), run("--processes", "2")
    assert alone["attacks"][0]["metrics"] == spread["attacks"][0]["metrics"]
