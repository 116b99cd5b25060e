"""Clients that clip each record's gradient and add noise: their records, the ladder and the verdict."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from typer.testing import CliRunner

from exhume import readers
from exhume.auditing.kinds.update import read_updates
from exhume.auditing.kinds.update_files import ClientUpdate, Truth
from exhume.auditing.kinds.update_rows import noise_bound
from exhume.auditing.premise import agreement_of, check_named_records
from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.settings import Brief, UpdateSettings
from exhume.train.dp import NOT_PRIVATE, Privacy
from exhume.train.local import LocalTraining, Routine, Steps
from exhume.victims.gradient import cut_batches, release_updates

NETS = {
    "mlp": MLP((1, 8, 8), (60,), 10, "relu"),
    "cnn": CNN((1, 8, 8), (6,), (3,), (2,), (20,)),
}


def drawn(count, key):
    digits = readers.load("digits")
    return digits[torch.randperm(len(digits), generator=key.generator())[:count]]


def sent_by(net, records, privacy, said, key):
    """What the client did, and what is said of it."""
    start = net.initial(key)
    local = LocalTraining(net, privacy=privacy)
    sent, _ = release_updates(local, start, cut_batches(records, len(records)), key.fold("noise"))
    return ClientUpdate("3", 1, sent, net, 4, Steps(privacy=said), averaged=True, checked=())


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(("clip", "noise"), [(0.5, 0.0), (0.5, 0.02), (0.5, 0.2), (1.0, 8.0)])
def test_the_named_records_clipped_as_is_said(net, clip, noise, key):
    own, others = drawn(4, key.fold("own")), drawn(4, key.fold("others"))
    privacy = Privacy(clip, noise)
    update = sent_by(NETS[net], own, privacy, privacy, key)
    right, wrong = agreement_of(update, own), agreement_of(update, others)
    assert right.known
    assert not right.wrong
    assert right.exact if not noise else right.noise_like
    if noise <= 0.02:
        assert wrong.wrong
    if noise >= 8:
        assert right.hides


def test_noise_of_another_size_than_is_said_is_not_allowed_for(key):
    own = drawn(4, key.fold("own"))
    update = sent_by(NETS["mlp"], own, Privacy(0.5, 0.2), Privacy(0.5, 0.1), key)
    assert agreement_of(update, own).wrong


@pytest.mark.parametrize("declared", [True, False])
def test_silence_under_noise_that_hides_counts_only_if_it_was_declared(declared, key):
    own, privacy = drawn(4, key.fold("own")), Privacy(1.0, 8.0)
    update = sent_by(NETS["mlp"], own, privacy, privacy if declared else NOT_PRIVATE, key)
    _, truth = check_named_records([update], Truth({update.client: own}, drawn(40, key)))
    assert ("noise that nobody declared" in truth.doubt) != declared


@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_clipping_that_nobody_named_is_found(noise, key):
    own, others = drawn(4, key.fold("own")), drawn(4, key.fold("others"))
    update = sent_by(NETS["mlp"], own, Privacy(0.7, noise), NOT_PRIVATE, key)
    right = agreement_of(update, own)
    assert right.wrong
    assert right.cause.kind == "clip"
    assert right.cause.value == pytest.approx(0.7, rel=0.05)
    assert "--dp-clip" in right.sentence
    assert agreement_of(update, others).cause is None


SOURCE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 150), nn.ReLU(), nn.Linear(150, 10))
"""


@pytest.fixture
def place(tmp_path, monkeypatch, few_digits):
    (tmp_path / "private_nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    shutil.copy(few_digits, tmp_path / "few.npz")
    return tmp_path


def audit(*arguments, out="out"):
    usual = ("--model", "private_nets.py:make", "--threads", "1", "--restarts", "1", "--out", out)
    return CliRunner().invoke(app, ["audit-update", *map(str, (*arguments, *usual))])


def result(out="out"):
    return json.loads(Path(out, "result.json").read_text())


def private_update(clip, noise, key, index=(3, 17, 40, 41)):
    """Written out: each record's gradient by itself, clipped; then noise on the sum."""
    space = {}
    exec(SOURCE, space)
    module, digits = space["make"](), readers.load("digits")
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for row in index:
        module.zero_grad()
        F.cross_entropy(module(digits.inputs[[row]]), digits.labels[[row]]).backward()
        norm = torch.cat([p.grad.flatten() for p in module.parameters()]).norm()
        for name, p in module.named_parameters():
            total[name] += p.grad * min(1.0, clip / float(norm))
    generator = key.generator()
    return {
        name: (t + noise * clip * torch.randn(t.shape, generator=generator)) / len(index)
        for name, t in total.items()
    }


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_files_of_a_private_client(place, noise, key):
    save_file(private_update(1.0, noise, key), place / "g.safetensors")
    said = ["g.safetensors", "--data", "few.npz", "--records", "3,17,40,41", "--batch-size", 4]
    said += ["--search-steps", 3, "--dp-clip", 1]
    done = audit(*said, *(["--dp-noise", noise] if noise else []))
    premises = [p for a in result()["attacks"] if (p := a["premise"])]
    assert premises, done.output
    assert all(premise["holds"] for premise in premises)
    assert result()["victim"]["privacy"] == f"clip 1, noise multiplier {noise:g}"
    if not noise:
        assert done.exit_code == 0, done.output
        assert result()["verdict"]["word"] == "leaks"
        assert any(attack["proved"] == 4 for attack in result()["attacks"])


def test_the_ladder_takes_noise_away_and_clips_as_the_client_does(place):
    settings = UpdateSettings(
        model="private_nets.py:make",
        made=4,
        batch_size=4,
        data="few.npz",
        dp_clip=1.0,
        dp_noise=8.0,
        search_steps=3,
        seed=0,
    )
    case = read_updates(Brief(update=settings), lambda source, _: readers.load(source))
    (ladder,) = case.ladders()
    assert [rung.value for rung in ladder.rungs] == ["0", "0.5", "2"]
    easier = ladder.rungs[0].case(None, None)
    assert {update.steps.privacy for update in easier.updates} == {Privacy(1.0)}
    assert {update.noise for update in easier.updates} == {0.0}
    harder = ladder.rungs[1].case(None, None)
    assert {update.steps.privacy for update in harder.updates} == {Privacy(1.0, 0.5)}
    assert all(0 < h.noise < o.noise for h, o in zip(harder.updates, case.updates, strict=True))
    bound = noise_bound(case.updates[0].steps, 1, images=True)
    assert bound.chance < bound.most < 0.03
    assert bound.sentence in ladder.words


def test_a_record_counts_in_every_step_and_epoch():
    plain = Steps(privacy=Privacy(1.0, 2.0))
    one, two = noise_bound(plain, 1, images=False), noise_bound(plain, 2, images=False)
    assert one.chance < one.most < two.most
    epochs = replace(plain, routine=Routine(epochs=2, local_batch=4))
    assert noise_bound(epochs, 1, images=False) == two
    assert noise_bound(Steps(privacy=Privacy(1.0)), 1, images=False) is None


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "word"), [(0, "leaks"), (16, "no leak found")])
def test_strong_noise_ends_in_no_leak_found(place, noise, word):
    made = ["--made", 8, "--batch-size", 4, "--data", "digits", "--search-steps", 100]
    done = audit(*made, "--dp-clip", 1, "--dp-noise", noise)
    verdict = result()["verdict"]
    assert verdict["word"] == word, done.output
    if noise:
        assert "without the noise" in verdict["sentence"]
        assert "allows no attack to name more than" in verdict["sentence"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"dp_noise": 1.0}, "it is a multiple of --dp-clip"),
        ({"dp_clip": 1.0, "optimiser": "adam"}, "private updates are of SGD"),
    ],
)
def test_what_cannot_be_private_is_said(said, message):
    with pytest.raises(ExhumeError, match=message):
        UpdateSettings(model="m.py:make", update="g.safetensors", data="", seed=0, **said)
