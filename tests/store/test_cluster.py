"""A real Ray cluster of two nodes on this machine: same bits, bounded work ahead, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import pytest
import torch
from typer.testing import CliRunner

from exhume.cli import app
from exhume.core.contract import ExhumeError, Key
from exhume.models.mlp import MLP
from exhume.models.own import architecture_named
from exhume.store import scale
from exhume.store.scale import Cluster, place, run_jobs, spread_over
from exhume.store.shards import FolderStore, NullStore
from exhume.train.fleet import train_fleet
from exhume.train.optimisers import Descent
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'exhume[ray]'")
jobs = pytest.importorskip("planted_jobs")

OWN = """
import torch
from torch import nn
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
def train(model, records, rng):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in torch.randperm(len(records), generator=rng).split(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(records.inputs[rows]), records.labels[rows]).backward()
        optimiser.step()
"""

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]  # one cluster for all of them


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def spread(cluster):
    with spread_over(Cluster(cluster.address, patience=1.0)):
        yield


def until(condition):
    """Waits for the event; the limit only ends a test that would never end."""
    limit = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)


def test_every_job_once_with_its_own_result(spread):
    factor = torch.rand(50, 1000)
    found = dict(run_jobs(jobs.scaled, [3, None, 4, 5, None, 6], shared=factor))
    assert {i for i, result in found.items() if result is None} == {1, 4}
    assert all(torch.equal(found[i], factor * job) for i, job in ((0, 3), (2, 4), (3, 5), (5, 6)))
    assert len(found) == 6


def test_the_place_is_recorded_without_an_address(spread, cluster):
    said = place()
    assert said == {
        "where": "Ray cluster",
        "ray": ray.__version__,
        "nodes": 2,
        "cluster_cores": 2,
    }
    assert cluster.address not in str(said)


def test_little_is_begun_beyond_the_oldest_unfinished_job(spread, tmp_path):
    pulled, finished = [], []

    def stream():
        for job in range(12):
            if 0 not in finished:
                pulled.append(job)
            yield job

    for index, _ in run_jobs(jobs.waits_for_three, stream(), shared=str(tmp_path)):
        finished.append(index)
        (tmp_path / str(index)).touch()
    assert sorted(finished) == list(range(12))
    assert finished.index(0) == 3  # the three others of the window came first, and no more
    assert pulled == [0, 1, 2, 3]  # two nodes of one core: four places


def test_a_long_row_of_finished_jobs_is_passed_over(spread):
    found = list(run_jobs(jobs.naps, [None] * 20 + [7], shared={}))
    assert found == [*((i, None) for i in range(20)), (20, 7)]


def test_a_refusal_keeps_its_words(spread):
    with pytest.raises(ExhumeError, match="^job 1 will not$"):
        list(run_jobs(jobs.refuses, [1], shared=None))


def test_a_bug_keeps_its_traceback(spread):
    with pytest.raises(ZeroDivisionError, match=r"planted_jobs.py.*in fails"):
        list(run_jobs(jobs.fails, [1], shared=None))


@pytest.mark.slow
def test_a_job_that_always_kills_its_process_is_given_up(spread, monkeypatch):
    monkeypatch.setattr(scale, "RETRIES", 0)
    with pytest.raises(ExhumeError, match=r"^job 0 was lost 1 times on the Ray cluster \(WorkerCr"):
        list(run_jobs(jobs.dies, [1], shared=None))


def test_a_node_that_computes_otherwise_is_refused(spread, monkeypatch):
    monkeypatch.setattr(scale, "_arithmetic", lambda device="cpu": "torch 0.1")
    with pytest.raises(ExhumeError, match="this process with torch 0.1: the bits would differ"):
        list(run_jobs(jobs.scaled, [1], shared=torch.ones(1)))


def test_more_threads_than_any_node_has(spread):
    torch.set_num_threads(2)
    with pytest.raises(ExhumeError, match="^threads: 2 given, .* largest node .* has 1 cores"):
        next(run_jobs(jobs.threads, [1], shared=None))


@pytest.mark.slow
def test_threads_of_the_caller_and_then_no_such_node_any_more(spread, cluster, tmp_path):
    node = cluster.add_node(num_cpus=2)
    torch.set_num_threads(2)
    assert dict(run_jobs(jobs.threads, [1], shared=None)) == {0: 2}
    note = tmp_path / "begun"
    killer = threading.Thread(
        target=lambda: (until(note.exists), cluster.remove_node(node, allow_graceful=False))
    )
    killer.start()
    with pytest.raises(
        ExhumeError, match="no node with 2 cores for 1 seconds: finished work is kept"
    ):
        list(run_jobs(jobs.noted_nap, [1], shared=str(note)))
    killer.join()


@pytest.mark.slow
def test_ctrl_c_cancels_what_is_running(spread, tmp_path):
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where a shell started us with &
    note = tmp_path / "begun"
    threading.Thread(
        target=lambda: (until(note.exists), os.kill(os.getpid(), signal.SIGINT))
    ).start()
    with pytest.raises(KeyboardInterrupt):
        list(run_jobs(jobs.noted_nap, [1, 2, 3], shared=str(note)))
    until(
        lambda: ray.available_resources().get("CPU") == 2.0
    )  # and not when they would end by themselves


def test_jobs_left_behind_after_the_connection_start_no_ray(spread, monkeypatch):
    left = run_jobs(jobs.naps, [1, 2, 3], shared={})
    next(left)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cancel", lambda *_, **__: pytest.fail("would connect again"))
    left.close()


def test_the_same_audit_through_the_command_line(cluster, tmp_path):
    size = "--data digits --fixed 6 --targets 20 --shadows 80 --steps 10 --threads 1".split()
    local, spread = tmp_path / "local", tmp_path / "spread"
    for out, more in ((local, ()), (spread, ("--ray", cluster.address))):
        result = CliRunner().invoke(app, ["audit", *size, "--out", str(out), *more])
        assert result.exit_code == 0, result.output
    for name in ("config.toml", "closed-form.safetensors"):
        assert (local / name).read_bytes() == (spread / name).read_bytes()
    where = {run: json.loads((run / "environment.json").read_text()) for run in (local, spread)}
    assert where[local]["where"].startswith("this process")
    assert (where[spread]["where"], where[spread]["nodes"]) == ("Ray cluster", 2)


@pytest.mark.slow
def test_two_nodes_are_faster_than_one(cluster, make_records, capsys):
    """Chunks of the notebook's setting (|D-| = 1000, 784-10-10) but 30 steps, one thread each."""
    key, mlp = Key.from_seed(0), MLP((784,), (10,), 10)
    fixed = make_records(1000, (784,), 10, key.fold("fixed"))

    def seconds(chunks: int) -> float:
        extra = make_records(64 * chunks, (784,), 10, key.fold("extra", chunks)).one_each()
        fleet = train_fleet(
            FullBatch(mlp, Descent(steps=30)),
            mlp.initial(key),
            fixed,
            extra,
            key=key,
            store=NullStore(),
            chunk=64,
            stage="s",
        )
        started = time.perf_counter()
        for _ in fleet:
            pass
        return time.perf_counter() - started

    here = seconds(8)
    second = next(iter(cluster.worker_nodes))
    with spread_over(Cluster(cluster.address)):
        seconds(2)  # workers start and import torch
        two = seconds(8)
        cluster.remove_node(second)
        until(lambda: place()["nodes"] == 1)
        one = seconds(8)
        cluster.add_node(num_cpus=1)
    with capsys.disabled():
        sys.stdout.write(
            f"\n512 models: here {here:.1f} s, one node {one:.1f} s, two nodes {two:.1f} s, "
            f"speed-up {one / two:.2f}\n"
        )
    assert one / two > 1.4


@pytest.mark.slow
def test_the_users_own_code_trains_on_the_cluster(
    cluster, make_records, key, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(OWN)
    net = architecture_named("mine.py:Net", input_shape=(4,), classes=3, root=tmp_path)
    recipe = OwnTraining.of(net, "mine.py:train", root=tmp_path)
    fixed, extra = make_records(9, (4,), 3, key), make_records(4, (4,), 3, key.fold("e"))
    common = {"key": key, "store": NullStore(), "chunk": 1, "stage": "s"}

    def trained():
        chunks = train_fleet(recipe, net.initial(key), fixed, extra.one_each(), **common)
        return torch.cat(list(chunks))

    here = trained()
    with spread_over(Cluster(cluster.address)):
        assert torch.equal(trained(), here)
        (tmp_path / "mine.py").write_text(OWN.replace("lr=0.1", "lr=0.2"))
        with pytest.raises(ExhumeError, match="train: mine.py:train is not the code that it was"):
            trained()


def test_a_killed_node_loses_nothing_and_changes_no_bit(cluster, make_records, tmp_path):
    """The last test of two nodes: whoever comes later starts another one."""
    key, mlp = Key.from_seed(0), MLP((20,), (6,), 3)
    trace, slow = tmp_path / "trace", tmp_path / "slow"
    recipe = jobs.Traced(FullBatch(mlp, Descent(steps=20)), str(trace), str(slow))
    fixed = make_records(40, (20,), 3, key.fold("fixed"))
    extra = make_records(28, (20,), 3, key.fold("extra")).one_each()

    def fleet(folder):
        store = FolderStore(tmp_path / folder)
        start = mlp.initial(key)
        return train_fleet(
            recipe, start, fixed, extra, key=key, store=store, chunk=3, stage="training"
        )

    def begun() -> list[tuple[str, str]]:  # chunk and node, in order
        lines = trace.read_text().splitlines() if trace.exists() else []
        return [(chunk, node) for chunk, node in map(str.split, lines)]

    expected = list(fleet("local"))
    assert not begun()
    third = str(2 * 3)  # the first model of the chunk
    shards = sorted((tmp_path / "local").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    (tmp_path / "spread").mkdir()
    (tmp_path / "spread" / shards[2].name).write_bytes(shards[2].read_bytes())  # finished earlier

    (doomed,) = cluster.worker_nodes
    slow.write_text(doomed.node_id)

    def kill():
        until(lambda: doomed.node_id in {node for _, node in begun()})
        cluster.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    with spread_over(Cluster(cluster.address)):
        chunks = list(fleet("spread"))
    killer.join()

    assert [len(chunk) for chunk in chunks] == [3] * 9 + [1]
    assert torch.equal(torch.cat(chunks), torch.cat(expected))
    assert {p.name: p.read_bytes() for p in (tmp_path / "spread").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "local").iterdir()
    }
    begun_by = {chunk: [node for c, node in begun() if c == chunk] for chunk, _ in begun()}
    assert third not in begun_by
    assert len(begun_by) == 9
    (redone,) = [nodes for nodes in begun_by.values() if doomed.node_id in nodes]
    assert redone[0] == doomed.node_id
    assert redone[1:]
    assert doomed.node_id not in redone[1:]
