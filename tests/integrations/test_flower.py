from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.readers.updates import Recording, from_recording, recorded_in
from exhume.train.local import PLAIN, Routine

pytest.importorskip("flwr", reason="needs Flower: pip install 'exhume[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.task_identity import TaskIdentity

from exhume.guard import Guard, GuardPolicy
from exhume.integrations.flower import FactNames, RecordingStrategy, guard_mod, recording_mod

ASKED = (ArrayRecord(), ConfigRecord(), Mock(spec=Grid))
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_two_clients"


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch):
    """Messages are made inside a run of Flower only."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def state(value):
    return nn.Linear(2, 1).state_dict() | {"weight": torch.full((1, 2), value)}


def request(node, *, kind="train", lr=0.5, value=1.0):
    content = RecordDict(
        {"arrays": ArrayRecord(state(value)), "config": ConfigRecord({"lr": lr, "server-round": 4})}
    )
    return Message(content=content, dst_node_id=node, message_type=kind)


def answer(message, value, **metrics):
    content = RecordDict(
        {
            "arrays": ArrayRecord(state(value)),
            "metrics": MetricRecord({"num-examples": 3, **metrics}),
        }
    )
    return Message(content=content, reply_to=message)


class Plain(Strategy):
    """Asks three nodes and averages nothing."""

    def configure_train(self, server_round, arrays, config, grid):
        return (request(node, value=float(node)) for node in (11, 12, 13))

    def aggregate_train(self, server_round, replies):
        return None, MetricRecord({"replies": len(list(replies))})

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return MetricRecord({"evaluated": 1})

    def summary(self):
        self.said = True


def failed(message):
    return Message(error=Error(code=1, reason="lost"), reply_to=message)


def test_a_strategy_goes_on_as_before_and_is_recorded(tmp_path):
    inner = Plain()
    strategy = RecordingStrategy(inner, Recording(tmp_path), FactNames(client="who", steps="turns"))
    first, second, third = strategy.configure_train(7, *ASKED)
    replies = [
        answer(first, 0.0, who=0, turns=2),
        answer(second, 5.0, who=1, turns=1),
        failed(third),
    ]
    _, metrics = strategy.aggregate_train(7, iter(replies))
    assert metrics["replies"] == 3  # the wrapped strategy sees failures as well
    assert strategy.configure_evaluate(7, *ASKED) == []
    assert strategy.aggregate_evaluate(7, [])["evaluated"] == 1
    strategy.summary()
    assert inner.said
    told = recorded_in(tmp_path)
    assert [(t.round, t.client, t.rate, t.steps, t.batch_size) for t in told] == [
        (7, "0", 0.5, 2, 3),
        (7, "1", 0.5, 1, 3),
    ]
    updates = from_recording(tmp_path, nn.Linear(2, 1))
    gradients = [u.payload.layout.split(u.payload.values)["weight"][0] for u in updates]
    assert gradients[0].flatten().tolist() == pytest.approx([11.0, 11.0])  # (11 - 0) / (0.5 · 2)
    assert gradients[1].flatten().tolist() == pytest.approx([14.0, 14.0])  # (12 - 5) / 0.5


def test_how_clients_trained_is_recorded_where_it_is_said(tmp_path):
    facts = FactNames(epochs="local-epochs", local_batch=2, momentum="momentum")
    strategy = RecordingStrategy(Plain(), Recording(tmp_path), facts)
    first, *_ = strategy.configure_train(1, *ASKED)
    strategy.aggregate_train(1, [answer(first, 0.0, **{"local-epochs": 3, "momentum": 0.9})])
    (told,) = recorded_in(tmp_path)
    assert told.routine(PLAIN) == Routine(epochs=3, local_batch=2, momentum=0.9)
    (update,) = from_recording(tmp_path, nn.Linear(2, 1))
    assert update.count == 6  # 3 epochs over 3 records


def test_a_mod_records_training_and_nothing_else(tmp_path):
    context = Context(1, 5, {}, RecordDict(), {})
    mod = recording_mod(Recording(tmp_path), FactNames(rate=0.25, batch_size=0))
    for kind in ("evaluate", "train"):
        message = request(9, kind=kind)
        reply = answer(message, 0.0)
        assert mod(message, context, lambda asked, _, reply=reply: reply) is reply
    message = request(9)
    assert mod(message, context, lambda asked, _: failed(asked)).has_error()
    (told,) = recorded_in(tmp_path)
    assert (told.round, told.client, told.rate, told.batch_size) == (4, "5", 0.25, 0)


def test_what_a_run_does_not_tell(tmp_path):
    strategy = RecordingStrategy(Plain(), Recording(tmp_path), FactNames(rate="eta"))
    first, *_ = strategy.configure_train(1, *ASKED)
    with pytest.raises(
        ExhumeError, match=r"rate: neither the config .* have 'eta'; say FactNames\(rate="
    ):
        strategy.aggregate_train(1, [answer(first, 0.0)])
    bare = answer(first, 0.0)
    bare.content["more"] = ArrayRecord(state(0.0))
    with pytest.raises(ExhumeError, match="it holds 2 array records, one model is needed"):
        RecordingStrategy(
            Plain(), Recording(tmp_path), FactNames(), {11: first.content}
        ).aggregate_train(1, [bare])


QUICK = {"RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"}


def run_python(*given, cwd):
    """What a process of its own says: Flower's simulation starts Ray in it."""
    done = subprocess.run(
        [sys.executable, *given],
        env=os.environ | QUICK,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def by_the_example(run):
    return run_python(EXAMPLE / "run.py", run, cwd=run.parent)


SIMULATED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from federation import simulate
from exhume import readers
run = Path(sys.argv[2])
simulate(run / "recorded")
some = readers.load("mnist")[:1000]
np.savez(run / "mnist.npz", x=some.inputs, y=some.labels)
"""


def audited_here(run):
    """What the example does, but for the audit: in this process, with a seventieth of the data."""
    run_python("-c", SIMULATED, EXAMPLE, run, cwd=run.parent)
    who = run / "who.json"
    who.write_text(json.dumps(runpy.run_path(str(EXAMPLE / "federation.py"))["CLIENTS"]))
    given = ["--model", f"{EXAMPLE / 'federation.py'}:make", "--data", str(run / "mnist.npz")]
    given += ["--records", str(who), "--out", str(run / "audit")]
    told = CliRunner().invoke(app, ["audit-update", str(run / "recorded"), *given])
    assert told.exit_code == 0, told.output
    return told.stdout


@pytest.mark.flower
@pytest.mark.network  # MNIST, where it is not cached
@pytest.mark.xdist_group("ray")  # its simulation runs on Ray
@pytest.mark.parametrize(
    "way", [audited_here, pytest.param(by_the_example, marks=pytest.mark.slow)]
)
def test_two_clients_in_flowers_simulation_are_recorded_and_audited(way, tmp_path):
    pytest.importorskip("ray", reason="Flower's simulation needs Ray: pip install 'exhume[flower]'")
    run = tmp_path / "run"
    assert "The release leaks: 8 of 8 records (100%)" in way(run)
    result = json.loads((run / "audit" / "result.json").read_text())
    assert result["victim"]["clients"] == 2
    (ratio,) = [a for a in result["attacks"] if a["id"] == "bias-ratio"]
    assert ratio["metrics"]["recovered"] == 1
    assert ratio["metrics"]["certified"] == 8
    assert (run / "recorded").stat().st_mode & 0o777 == 0o700


GUARDED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from federation import simulate
simulate(Path(sys.argv[2]), guarded=True)
"""


@pytest.mark.flower
@pytest.mark.network  # MNIST, where it is not cached
@pytest.mark.xdist_group("ray")  # its simulation runs on Ray
def test_a_guard_stops_a_batch_of_four_and_lets_a_defended_update_leave(tmp_path):
    pytest.importorskip("ray", reason="Flower's simulation needs Ray: pip install 'exhume[flower]'")
    run_python("-c", GUARDED, EXAMPLE, tmp_path / "recorded", cwd=tmp_path)
    (told,) = recorded_in(tmp_path / "recorded")  # of two clients that trained
    assert told.client == "1"


def test_a_guard_that_cannot_read_a_reply_stops_it():
    context = Context(1, 5, {}, RecordDict(), {})
    guard = Guard(GuardPolicy(shape=(2,), seconds=60.0))
    mod = guard_mod(guard, lambda: nn.Linear(2, 1), FactNames(rate="eta"))
    for kind, stopped in (("evaluate", False), ("train", True)):
        message = request(9, kind=kind)
        reply = mod(message, context, lambda asked, _: answer(asked, 0.0))
        assert reply.has_error() == stopped
    assert reply.error.reason == "exhume guard: it could not be checked: ExhumeError"
    message = request(9)
    assert mod(message, context, lambda asked, _: failed(asked)).error.reason == "lost"
