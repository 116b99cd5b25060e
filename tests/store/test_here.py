"""What holds without a cluster, and the sentence for every way of not getting one."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from exhume.cli import app
from exhume.core.contract import ExhumeError, Key
from exhume.models.mlp import MLP
from exhume.store import scale
from exhume.store.scale import HERE, Cluster, Processes, place, run_jobs, spread_over, where_now
from exhume.store.shards import NullStore
from exhume.train import fleet
from exhume.train.fleet import train_fleet
from exhume.train.recipe import FullBatch


def test_here_jobs_come_one_by_one_and_none_is_no_work():
    pulled = []

    def jobs():
        for job in (5, None, 7):
            pulled.append(job)
            yield job

    found = run_jobs(lambda shared, job: shared + job, jobs(), shared=1)
    assert next(found) == (0, 6)
    assert pulled == [5]
    assert list(found) == [(1, None), (2, 8)]


def test_here_is_the_default_and_leaves_no_trace():
    assert where_now() == HERE
    with spread_over(HERE):
        assert place() == {"where": "this process"}
    assert where_now() == HERE


@pytest.mark.parametrize("address", ["here", "ray://head:10001", "head:", ":6379", "head:port", ""])
def test_an_address_is_auto_or_host_and_port(address):
    with pytest.raises(ExhumeError, match=f"^ray: {address!r} is neither auto nor HOST:PORT$"):
        Cluster(address)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(app, ["audit", "--data", "digits", "--ray", "auto"])
    assert result.exit_code == 2
    assert result.stderr == "exhume: a cluster needs ray: pip install 'exhume[ray]'\n"


def test_a_broken_ray_is_not_an_absent_one(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("No module named 'msgpack'", name="msgpack")

    monkeypatch.setattr("exhume.core.errors.import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="msgpack"), spread_over(Cluster()):
        pass


class NoRay:
    """Ray, as far as connecting goes."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        raise self.error


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("through", ["option", "environment"])
def test_nobody_at_the_address(through, closed_port, monkeypatch):
    monkeypatch.setattr(scale, "_ray", lambda: NoRay(AssertionError("not reached")))
    address = f"127.0.0.1:{closed_port}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    where = Cluster(address) if through == "option" else Cluster("auto")
    with (
        pytest.raises(ExhumeError, match=f"^no Ray cluster answers at {address}: .*refused$"),
        spread_over(where),
    ):
        pass
    assert where_now() == HERE


def test_what_ray_says_about_the_address_becomes_one_sentence(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(scale, "_ray", lambda: NoRay(ConnectionError("Could not\n  find any.")))
    with (
        pytest.raises(
            ExhumeError, match="^cannot join a Ray cluster at auto: Could not find any.$"
        ),
        spread_over(Cluster()),
    ):
        pass


def test_a_worker_uses_the_callers_threads_and_puts_its_own_back():
    torch.set_num_threads(1)
    answer = scale._work(lambda _, job: torch.get_num_threads(), None, 0, 2, scale._arithmetic())
    assert (answer.result, torch.get_num_threads()) == (2, 1)


def test_a_gpu_is_not_silently_left_out(make_records):
    mlp, key = MLP((6,), (5,), 3), Key.from_seed(0)
    records = make_records(4, (6,), 3, key).to(torch.device("meta"))
    job = train_fleet(
        FullBatch(mlp),
        mlp.initial(key),
        records,
        records.one_each(),
        key=key,
        store=NullStore(),
        chunk=2,
        stage="s",
    )
    with (
        spread_over(Processes(2)),
        pytest.raises(ExhumeError, match="^device: meta given, but other processes train on cpu"),
    ):
        next(job)


class FakeRay:
    """Ray in this process: jobs are done when they are begun."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.offered = [{"Alive": True, "Resources": node} for node in nodes]
        self.asked: dict[str, int] = {}

    def nodes(self):
        return self.offered

    def is_initialized(self) -> bool:
        return True

    def put(self, value):
        return value

    def remote(self, **asked):
        self.asked = asked

        def begun(function):
            return SimpleNamespace(remote=lambda *given: (function(*given),))

        return begun

    def wait(self, references, **_):
        return references[:1], references[1:]

    def get(self, reference):
        return reference[0]

    exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError, RayError=KeyError)


def test_every_job_on_a_cluster_has_a_gpu_of_its_own(monkeypatch):
    ray = FakeRay({"CPU": 4.0, "GPU": 2.0}, {"CPU": 8.0}, {"CPU": 1.0, "GPU": 4.0})
    monkeypatch.setattr(scale, "_ray", lambda: ray)
    monkeypatch.setattr(scale, "_gpu_name", lambda: "the same")
    assert (scale._slots(1), scale._slots(1, 1), scale._slots(2, 1)) == (13, 3, 2)
    with spread_over(Cluster()):
        found = dict(run_jobs(_doubled, [3, None, 4], shared=2, threads=1, device="cuda"))
        assert found == {0: 6, 1: None, 2: 8}
        assert (ray.asked["num_gpus"], ray.asked["num_cpus"]) == (1, 1)
        list(run_jobs(_doubled, [3], shared=2, threads=1))
        assert ray.asked["num_gpus"] == 0


def _doubled(factor: int, job: int) -> int:
    return factor * job


def test_a_cluster_without_gpus_and_one_with_others_are_refused(monkeypatch):
    monkeypatch.setattr(scale, "_ray", lambda: FakeRay({"CPU": 8.0}))
    why = "^device: cuda given, but no node of the Ray cluster offers a GPU and 1 cores"
    with spread_over(Cluster()), pytest.raises(ExhumeError, match=why):
        list(run_jobs(_doubled, [3], shared=2, threads=1, device="cuda"))
    monkeypatch.setattr(scale, "_gpu_name", lambda: "ours")
    asked = scale._arithmetic("cuda")
    monkeypatch.setattr(scale, "_gpu_name", lambda: "theirs")
    answer = scale._work(_doubled, 2, 3, 1, asked)
    assert answer.refusal is not None
    assert "GPU theirs, this process with" in answer.refusal
    assert scale._work(_doubled, 2, 3, 1, scale._arithmetic()).result == 6


def test_a_worker_trains_on_its_device_and_sends_numbers_back(make_records):
    mlp, key = MLP((6,), (5,), 3), Key.from_seed(0)
    records = make_records(8, (6,), 3, key)
    recipe, start = FullBatch(mlp), mlp.initial(key)
    chunk = fleet._Chunk.of(None, records[:3].one_each(), 0, sent=True)
    here = fleet._fit(fleet._Shared(recipe, start, records, key), chunk)
    there = fleet._fit(fleet._Shared(recipe, start, records, key, "cpu"), chunk)
    assert torch.equal(here, there)
    assert there.device.type == "cpu"
