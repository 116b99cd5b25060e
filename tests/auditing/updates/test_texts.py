"""The audit of a text model's update, from files to verdict, on small networks whose texts are known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from typer.testing import CliRunner

from exhume import readers
from exhume.cli import app
from exhume.readers.updates import Recording

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, rows=60, pool="flat"):
        super().__init__()
        torch.manual_seed(0)
        self.pool = pool
        if pool == "late":  # defined first, used last
            self.out = nn.Linear(120, 2)
        self.embed = nn.Embedding(rows, 16, padding_idx=0)
        self.hidden = nn.Linear(16 * (1 if pool == "mean" else 5), 120)
        if pool != "late":
            self.out = nn.Linear(120, 2)

    def forward(self, tokens):
        vectors = self.embed(tokens)
        pooled = vectors.mean(1) if self.pool == "mean" else vectors.flatten(1)
        return self.out(torch.relu(self.hidden(pooled)))

def flat(): return Net()
def mean(): return Net(pool="mean")
def late(): return Net(pool="late")
def lone():
    net = Net()
    net.hidden = nn.Linear(80, 1)
    nn.init.constant_(net.hidden.bias, 20.0)  # every text switches it on
    net.out = nn.Linear(1, 2)
    net.embed.weight.requires_grad_(False)
    return net
def small(): return Net(rows=10)
def frozen():
    net = Net()
    net.embed.weight.requires_grad_(False)
    return net
def numbers(): return nn.Sequential(nn.Linear(5, 3))
def ours():
    from exhume.models.mlp import MLP
    return MLP((5,), (3,), 2)
"""
INDEX = [3, 17]
NAMES = [f"word{i}" for i in range(58)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with networks, texts and their vocabulary."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text_nets.py").write_text(MODEL)
    (folder / "words.txt").write_text("\n".join(["<pad>", "<unk>", *NAMES]))
    generator = torch.Generator().manual_seed(1)
    lines = []
    for i in range(150):
        count = int(torch.randint(3, 6, (), generator=generator))
        picked = torch.randint(len(NAMES), (count,), generator=generator).tolist()
        lines.append(" ".join(NAMES[p] for p in picked) + f"\t{'good' if i % 2 else 'bad'}")
    (folder / "notes.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture
def invoke(place, monkeypatch):
    monkeypatch.chdir(place)

    def run(*arguments, model="flat"):
        named = ["--model", f"text_nets.py:{model}", "--threads", "1"]
        return CliRunner().invoke(app, ["audit-update", *map(str, arguments), *named])

    return run


def made(name):
    space = {}
    exec(MODEL, space)
    return space[name]()


def texts():
    reading = readers.TextReading("words.txt", length=5)
    return readers.load("notes.txt", reading=reading)


def trained(module, *, steps=1, rate=0.1, index=INDEX):
    records = texts()[torch.tensor(index)]
    optimiser = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(module(records.inputs), records.labels).backward()
        optimiser.step()
    return module


def gradient_of(module, path):
    trained(module, rate=0.0)
    save_file({n: p.grad for n, p in module.named_parameters() if p.grad is not None}, path)
    return path


def section(out, name):
    result = json.loads((out / "result.json").read_text())
    return next(attack for attack in result["attacks"] if attack["id"] == name)


SCORED = ["--data", "notes.txt", "--records", "3,17", "--vocabulary", "words.txt", "--length", "5"]


def test_a_gradient_with_its_texts(invoke, place):
    path, out = gradient_of(made("flat"), place / "g.safetensors"), place / "scored"
    done = invoke(path, *SCORED, "--batch-size", "2", "--out", out, "--redact")
    assert done.exit_code == 0, done.output
    assert "The release leaks: 2 of 2 records" in done.stdout
    metrics = section(out, "texts")["metrics"]
    assert metrics["whole_texts"] == metrics["token_accuracy"] == metrics["success"] == 1
    assert metrics["certified"] == 2
    assert metrics["update_residual"] < 1e-3
    assert metrics["oracle_token_accuracy"] < 0.7
    words = section(out, "words")["metrics"]
    assert (words["word_accuracy"], words["false_words"]) == (1, 0)
    page = (out / "report.html").read_text()
    used = [NAMES[t - 2] for t in texts().inputs[INDEX[0]].tolist() if t]
    assert "The private texts, and what came back" in page
    assert f"<mark>{used[0]}</mark> <mark>{used[1]}</mark>" in page
    shared = (out / "report-redacted.html").read_text()
    assert not [name for name in NAMES if name in shared]
    assert "are left out of this redacted version" in shared
    again = invoke(path, *SCORED, "--batch-size", "2", "--out", out, "--fail-over", "0.5")
    assert again.exit_code == 1


def test_without_texts_the_update_proves_them(invoke, place):
    path, out = gradient_of(made("flat"), place / "g.safetensors"), place / "proved"
    done = invoke(path, "--shape", "5", "--vocabulary", "words.txt", "--out", out)
    assert done.exit_code == 0, done.output
    assert "The release leaks: 2 records were reconstructed, and the release itself proves it." in (
        done.stdout
    )
    assert "Training on 2 reconstructions gives the update back" in done.stdout
    page = (out / "report.html").read_text()
    assert "There was no private text to compare with." in page
    assert "<span>word" in page
    assert section(out, "words")["metrics"]["success"] == 1


def test_two_states_after_several_steps(invoke, place):
    before, after, out = place / "b.safetensors", place / "a.pt", place / "steps"
    save_file(made("flat").state_dict(), before)
    torch.save(trained(made("flat"), steps=3).state_dict(), after)
    states = ["--before", before, "--after", after, "--rate", "0.1", "--steps", "3"]
    done = invoke(*states, *SCORED, "--batch-size", "2", "--out", out)
    assert done.exit_code == 0, done.output
    assert section(out, "texts")["metrics"]["whole_texts"] == 1
    assert section(out, "texts")["metrics"]["certified"] == 2


def test_recorded_updates_of_two_clients(invoke, place):
    recording = Recording(place / "recorded")
    start = made("flat").state_dict()
    for client, index in (("0", [3, 17]), ("1", [60, 61])):
        after = trained(made("flat"), index=index).state_dict()
        recording.write(start, after, client=client, round=1, rate=0.1, steps=1, batch_size=2)
    (place / "who.json").write_text('{"0": [3, 17], "1": [60, 61]}')
    options = [*SCORED[:2], "--records", "who.json", *SCORED[4:]]
    done = invoke(place / "recorded", *options, "--out", place / "several")
    assert done.exit_code == 0, done.output
    assert "4 of 4 records" in done.stdout


def test_the_order_that_no_attack_can_tell(invoke, place):
    path, out = gradient_of(made("mean"), place / "m.safetensors"), place / "bags"
    done = invoke(path, *SCORED, "--batch-size", "2", "--out", out, model="mean")
    assert done.exit_code == 0, done.output
    assert section(out, "texts")["metrics"]["whole_texts"] == 1
    assert "does not see the order of the words" in (out / "report.html").read_text()


def test_a_frozen_embedding_lists_no_words(invoke, place):
    path, out = gradient_of(made("frozen"), place / "f.safetensors"), place / "frozen"
    done = invoke(path, *SCORED, "--batch-size", "2", "--out", out, model="frozen")
    assert done.exit_code == 0, done.output
    assert section(out, "texts")["metrics"]["whole_texts"] == 1
    assert section(out, "texts")["metrics"]["certified"] == 2
    assert "does not tell which words" in section(out, "words")["status"]["reason"]


def test_layers_in_another_order(invoke, place):
    """The last bias that is defined is not that of the outputs: it says nothing about the loss."""
    path, out = gradient_of(made("late"), place / "late.safetensors"), place / "late"
    done = invoke(path, *SCORED, "--batch-size", "2", "--out", out, model="late")
    assert done.exit_code == 0, done.output
    assert section(out, "texts")["metrics"]["certified"] == 2


def test_where_nothing_applies_nothing_is_known(invoke, place, monkeypatch):
    path, out = gradient_of(made("lone"), place / "lone.safetensors"), place / "lone"
    done = invoke(path, *SCORED, "--batch-size", "2", "--out", out, model="lone")
    assert done.exit_code == 2, done.output
    assert "Not audited: " in done.stdout
    (place / "lone.toml").write_text(
        '[data]\nsource = "notes.txt"\n[update]\nmodel = "text_nets.py:lone"\n'
        "made = 2\nbatch_size = 3\nlength = 5\n"
    )
    brief = CliRunner().invoke(app, ["audit", "lone.toml", "--out", str(place / "lone-brief")])
    assert brief.exit_code == 2, brief.output
    assert "Not audited: " in brief.stdout


def test_made_updates_in_a_brief(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "audit.toml").write_text(
        '[data]\nsource = "notes.txt"\n[budget]\ntime = "2m"\nfixes = true\n'
        '[victim]\nnetwork = "text_nets.py:flat"\nreleased = false\n'
        "[update]\nmade = 3\nbatch_size = 2\n"
    )
    done = CliRunner().invoke(app, ["audit", "audit.toml", "--out", "brief", "--redact"])
    assert done.exit_code == 0, done.output
    assert "The release leaks: 6 of 6 records" in done.stdout
    assert "noise as large as the update: no attack applies to it any more" in done.stdout
    result = json.loads((place / "brief" / "result.json").read_text())
    assert 0 < sum(row["estimated_seconds"] for row in result["plan"] if row["run"]) < 60
    assert not [name for name in NAMES if name in json.dumps(result)]
    first = (place / "brief" / "result.json").read_bytes()
    again = CliRunner().invoke(app, ["audit", "audit.toml", "--out", "brief"])
    assert again.exit_code == 0
    now = json.loads((place / "brief" / "result.json").read_text())
    assert now["verdict"] == json.loads(first)["verdict"]


@pytest.mark.parametrize(
    ("arguments", "model", "message"),
    [
        (
            ["--data", "notes.txt", "--records", "3"],
            "flat",
            "vocabulary: say with --vocabulary how",
        ),
        (SCORED, "numbers", "model: it does not take sequences of 5 tokens"),
        (["--data", "x.npz"], "flat", "data: it holds numbers, but the model takes tokens"),
        (
            ["--shape", "5", "--padding", "60"],
            "flat",
            "padding: 60 given, the model's embedding has",
        ),
        (
            ["--shape", "5", "--length", "5"],
            "flat",
            "length: say with --data which texts are meant",
        ),
        (["--shape", "5", "--padding", "-3"], "flat", "at least 0 and -1 are needed"),
        (["--shape", "5", "--vocabulary", "no.txt"], "flat", "vocabulary: no.txt: cannot be read"),
    ],
)
def test_what_does_not_fit(invoke, place, arguments, model, message):
    np.savez(place / "x.npz", x=np.random.default_rng(0).random((20, 5)), y=[0, 1] * 10)
    path = gradient_of(made("flat"), place / "g.safetensors")
    done = invoke(path, *arguments, "--out", place / "never", model=model)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "never").exists()


def test_tokens_beyond_the_embedding(invoke, place):
    batches = ["--made", "2", "--batch-size", "2", "--out", place / "never"]
    done = invoke(*batches, *SCORED[:2], model="small")
    assert done.exit_code == 2
    assert "has the token" in done.stderr
    assert "the model's embedding has 10 rows" in done.stderr


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ('[victim]\nnetwork = "mlp"\n', "token sequences; of these only updates are attacked"),
        (
            '[checkpoint]\nfile = "w.safetensors"\nrows = "0:9"\n',
            "images and vectors can be scored",
        ),
        (
            '[split]\nmodel = "text_nets.py:flat"\n',
            "say with --vocabulary how the words of the texts are numbered",
        ),
        (
            '[fitted]\nfile = "m.skops"\n',
            "a fitted linear model is attacked with what it was fitted on",
        ),
        ("[update]\nmade = 2\nbatch_size = 2\n", "texts need a model of your own that takes them"),
        (
            '[update]\nmodel = "text_nets.py:ours"\nmade = 2\nbatch_size = 2\n',
            "data: it holds texts, but the model takes numbers",
        ),
    ],
)
def test_texts_are_never_taken_for_pixels(place, monkeypatch, sections, message):
    monkeypatch.chdir(place)
    weights = {
        "0.weight": torch.rand(30, 5),
        "0.bias": torch.rand(30),
        "2.weight": torch.rand(1, 30),
    }
    save_file(weights, place / "w.safetensors")
    (place / "m.skops").touch()
    (place / "other.toml").write_text(f'[data]\nsource = "notes.txt"\n{sections}')
    done = CliRunner().invoke(app, ["audit", "other.toml", "--out", "never"])
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "never").exists()
