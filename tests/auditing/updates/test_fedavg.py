"""Clients that train as FedAvg does, partial updates and odd files, from files to verdict."""

from __future__ import annotations

import json
import shutil
import zipfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from typer.testing import CliRunner

from exhume import readers
from exhume.auditing.kinds import update
from exhume.auditing.kinds.update import read_updates
from exhume.auditing.run import plan
from exhume.cli import app
from exhume.core.contract import silent
from exhume.readers.updates import Recording, from_recording, recorded_in
from exhume.settings import Brief, UpdateSettings
from exhume.store.shards import NullStore
from exhume.train.local import LOSSES, OPTIMISERS, SCHEDULES, Routine

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
"""
INDEX = [3, 17, 40, 41]
RECORDS = ["--data", "few.npz", "--records", "3,17,40,41"]
QUICK = ["--threads", "1", "--search-steps", "3", "--restarts", "1", "--shape", "1,8,8"]


@pytest.fixture
def place(tmp_path, monkeypatch, few_digits):
    (tmp_path / "net.py").write_text(MODEL)
    shutil.copy(few_digits, tmp_path / "few.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made():
    namespace = {}
    exec(MODEL, namespace)
    return namespace["make"]()


def gradient(index=INDEX):
    module, digits = made(), readers.load("digits")
    loss = F.cross_entropy(module(digits.inputs[index].float()), digits.labels[index])
    loss.backward()
    return {n: p.grad for n, p in module.named_parameters()}


def audit(*arguments, out="out"):
    words = [str(a) for a in (*arguments, "--model", "net.py:make", *QUICK, "--out", out)]
    return CliRunner().invoke(app, ["audit-update", *words])


def result(place):
    return json.loads((place / "out" / "result.json").read_text())


def trained(order, **options):
    """Weights after epochs of batches of two, by torch."""
    module, digits = made(), readers.load("digits")
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, **options)
    for row in order:
        optimiser.zero_grad()
        some = [INDEX[i] for i in row]
        F.cross_entropy(module(digits.inputs[some].float()), digits.labels[some]).backward()
        optimiser.step()
    return module


def test_epochs_of_batches_in_an_unknown_order_are_proved(place):
    torch.save(made().state_dict(), "before.pt")
    after = trained([[2, 0], [1, 3], [3, 2], [0, 1]], momentum=0.5, weight_decay=0.01)
    torch.save(after.state_dict(), "after.pt")
    states = ["--before", "before.pt", "--after", "after.pt", "--rate", "0.05", "--batch-size", "4"]
    how = ["--epochs", "2", "--local-batch", "2", "--momentum", "0.5", "--weight-decay", "0.01"]
    done = audit(*states, *how)
    assert done.exit_code == 0, done.output
    assert "4 records were reconstructed, and the release itself proves it" in done.stdout
    victim = result(place)["victim"]
    assert victim["local_steps"] == 4
    assert victim["local_training"] == "batches of 2, momentum 0.5, weight decay 0.01"
    again = audit(
        *states, *how, *RECORDS, out="out2"
    )  # these records, in some order, give the update
    assert "4 of 4 records" in again.stdout


def test_made_updates_train_as_is_said(place):
    done = audit(
        *("--made", "1", "--batch-size", "4", "--data", "digits", "--rate", "0.05"),
        *("--epochs", "1", "--local-batch", "2", "--schedule", "linear", "--no-shuffle"),
    )
    assert done.exit_code == 0, done.output
    said = "batches of 2, in the order of the records, linear schedule"
    assert result(place)["victim"]["local_training"] == said
    certified = [one["metrics"].get("certified", 0) for one in result(place)["attacks"]]
    assert max(certified) == 4  # the order of the candidates is not that of the records
    assert result(place)["victim"]["local_steps"] == 2


def test_a_recording_says_how_the_client_trained(place):
    recording = Recording(place / "run")
    said = Routine(epochs=2, local_batch=2, momentum=0.5)
    states = made().state_dict(), trained([[0, 1], [2, 3]] * 2, momentum=0.5).state_dict()
    for client, routine in (("1", said), ("2", None)):
        recording.write(
            *states, round=1, client=client, rate=0.05, steps=4, batch_size=4, routine=routine
        )
    assert recorded_in(place / "run")[0].routine(Routine()) == said
    one, two = from_recording(place / "run", made(), Routine(momentum=0.9))
    assert one.steps.routine == said
    assert two.steps.routine == Routine(momentum=0.9)
    assert (one.count, two.count) == (4, 4)


def test_a_part_of_an_update_is_read_and_the_rest_taken_as_frozen(place):
    first = {n: t for n, t in gradient([3]).items() if n.startswith("1.")}
    save_file(first, "first.safetensors")
    done = audit("first.safetensors", "--batch-size", "1")
    assert done.exit_code == 0, done.output
    assert "1 record was reconstructed" in done.stdout
    assert (
        "Taken as frozen, since their update is zero or absent: 3.weight, 3.bias."
        in result(place)["victim"]["read_as"]
    )


def test_an_npz_is_read_and_a_zip_is_not(place):
    arrays = {n: t.numpy() for n, t in gradient([3, 17]).items()}
    np.savez("update.npz", **arrays)
    assert audit("update.npz", "--batch-size", "2").exit_code == 0
    np.savez("objects.npz", **{"1.weight": np.array([{}], dtype=object)})
    with zipfile.ZipFile("update.zip", "w") as archive:
        archive.write("update.npz")
    for name, message in (
        ("objects.npz", "objects.npz holds Python objects, which are not loaded"),
        ("update.zip", "update.zip is a zip archive with update.npz; unpack it"),
    ):
        done = audit(name)
        assert done.exit_code == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("factor", [0.01, -0.01])
def test_an_update_that_was_not_divided_by_the_rate(place, factor):
    save_file({n: factor * t for n, t in gradient().items()}, "u.safetensors")
    done = audit("u.safetensors")
    assert done.exit_code == 2
    sent = "before - after" if factor > 0 else "after - before"
    assert f"times what a gradient would be: it looks like {sent}" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "2", "--epochs", "2"], "epochs: give --steps on all records, or --epochs"),
        (["--local-batch", "2"], "local-batch: say with --epochs"),
        (["--epochs", "2", "--local-batch", "2"], "say with --batch-size how many records"),
        (["--optimiser", "adam", "--momentum", "0.5"], "momentum: Adam has none"),
        (["--optimiser", "adam"], "Adam's first step keeps the signs of the gradient"),
    ],
)
def test_what_cannot_be_is_said(place, arguments, message):
    torch.save(made().state_dict(), "before.pt")
    module = made()
    optimiser = torch.optim.Adam(module.parameters(), 0.05)
    for name, parameter in module.named_parameters():
        parameter.grad = gradient()[name]
    optimiser.step()
    torch.save(module.state_dict(), "after.pt")
    done = audit("--before", "before.pt", "--after", "after.pt", "--rate", "0.05", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_settings_and_training_have_the_same_choices():
    fields = UpdateSettings.__dataclass_fields__
    for name, legal in (("optimiser", OPTIMISERS), ("schedule", SCHEDULES), ("loss", LOSSES)):
        assert fields[name].metadata["setting"].choices == legal


def federated(records, batch, seconds):
    """A case of a client that trained two epochs, as it is read, and its brief with a budget."""
    torch.save(made().state_dict(), "before.pt")
    after = trained([[2, 0], [1, 3], [3, 2], [0, 1]])
    torch.save(after.state_dict(), "after.pt")
    settings = UpdateSettings(
        model="net.py:make",
        before="before.pt",
        after="after.pt",
        rate=0.05,
        epochs=2,
        local_batch=batch,
        data="few.npz",
        records=records,
        batch_size=4 if batch == 2 else 24,
        seed=0,
    )
    brief = Brief.of(settings).with_budget(time=seconds).resolved()
    return brief, read_updates(brief, lambda source, _: readers.load(source))


def test_the_order_of_many_records_is_looked_for_after_the_plan(place):
    """By its price: reading takes a moment, and a small budget leaves it out with a doubt."""
    brief, case = federated("0-23", 8, "1h")
    assert case.unchecked > 2
    assert case.truth.premise is None
    resolved = case.resolved(case.resolve_settings(brief, NullStore()), NullStore())
    assert resolved.unchecked == case.unchecked
    assert "compared with the updates" in resolved.inputs().takes
    assert not resolved.inputs().doubts
    brief, case = federated("0-23", 8, "10s")
    resolved = case.resolved(case.resolve_settings(brief, NullStore()), NullStore())
    assert resolved.unchecked is None
    assert resolved.inputs().doubts == (resolved.truth.doubt,)


def test_the_order_of_few_records_is_known_before_the_plan(place, monkeypatch):
    _, case = federated("3,17,40,41", 2, "1h")
    assert case.unchecked is None
    assert case.truth.premise.holds
    monkeypatch.setattr(update, "_AT_ONCE", 0.0)
    _, later = federated("3,17,40,41", 2, "1h")
    assert later.truth.premise is None
    assert later.made(None, silent).truth.premise == case.truth.premise


def test_a_budget_cuts_the_searches_and_never_what_is_cheap(place):
    save_file(gradient(), "g.safetensors")
    settings = UpdateSettings("net.py:make", "g.safetensors", shape=(1, 8, 8), batch_size=4)
    searching = []
    for seconds in ("1s", "60s"):
        (release,) = plan(Brief.of(settings).with_budget(time=seconds)).releases
        run = {attack.id: attack for attack in release.attacks if attack.run}
        assert {"bias-ratio", "span", "gates", "patches", "tolerant-ratio", "tensor"} <= set(run)
        searching.append(run["matching"].estimated_seconds if "matching" in run else 0.0)
    assert searching[0] < 1 < searching[1] < 60
