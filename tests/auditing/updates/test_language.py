"""The audit of a language model's update, from files to verdict, on small networks whose texts are known."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from typer.testing import CliRunner

from exhume import readers
from exhume.cli import app
from exhume.readers.adapters import adapted

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self, causal=True, rows=60, width=48):
        super().__init__()
        torch.manual_seed(0)
        self.causal, self.token, self.place = causal, nn.Embedding(rows, width), nn.Embedding(8, width)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for mix, up in zip(self.mix, self.up):
            seen = F.layer_norm(x, x.shape[-1:])
            x = x + F.scaled_dot_product_attention(*mix(seen).chunk(3, 2), is_causal=self.causal)
            x = x + torch.tanh(up(F.layer_norm(x, x.shape[-1:])))
        return F.layer_norm(x, x.shape[-1:]) @ self.token.weight.T / 7

def writer(): return Net()
def encoder(): return Net(causal=False)
def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(60, 4), nn.Flatten(), nn.Linear(32, 2))
"""
NAMES = [f"word{i}" for i in range(57)]
INDEX = [3, 17]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with networks, texts, their vocabulary, and one client's update."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "writers.py").write_text(MODEL)
    (folder / "words.txt").write_text("\n".join(["<pad>", "<unk>", "[MASK]", *NAMES]))
    generator = torch.Generator().manual_seed(1)
    shares = 1 / torch.arange(1, len(NAMES) + 1).float()
    lines = []
    for _ in range(160):
        count = int(torch.randint(5, 9, (), generator=generator))
        picked = torch.multinomial(shares, count, replacement=True, generator=generator)
        lines.append(" ".join(NAMES[p] for p in picked.tolist()))
    (folder / "notes.txt").write_text("\n".join(lines))
    names = {}
    exec(MODEL, names)
    reading = readers.TextReading(str(folder / "words.txt"), 8)
    rows = readers.load(str(folder / "notes.txt"), reading=reading).inputs[INDEX]
    net = names["writer"]()
    answers = net(rows)[:, :-1].flatten(0, 1)
    F.cross_entropy(answers, rows[:, 1:].flatten(), ignore_index=0).backward()
    save_file({n: p.grad for n, p in net.named_parameters()}, folder / "update.safetensors")
    return folder


@pytest.fixture
def invoke(place, monkeypatch, tmp_path):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))

    def run(*options, model="writer"):
        words = [
            "--threads",
            "1",
            "--model",
            f"writers.py:{model}",
            "--out",
            str(tmp_path / "run"),
            *options,
        ]
        return CliRunner().invoke(app, ["audit-update", *words])

    run.folder = tmp_path / "run"
    return run


TEXTS = "--data notes.txt --vocabulary words.txt --length 8".split()


def attacks(folder):
    return {a["id"]: a for a in json.loads((folder / "result.json").read_text())["attacks"]}


def test_a_client_s_update_gives_its_texts_away(invoke):
    where = ",".join(map(str, INDEX))
    done = invoke("update.safetensors", "--loss", "next-token", *TEXTS, "--records", where)
    assert done.exit_code == 0, done.output
    assert "2 of 2 records" in done.stdout
    found = attacks(invoke.folder)
    assert found["language"]["metrics"]["whole_texts"] == 1
    assert found["language"]["metrics"]["certified"] == 2
    assert "Training on 2 reconstructions" in " ".join(found["language"]["notes"])
    assert "word0" in (invoke.folder / "report.html").read_text()


def test_without_texts_the_proof_decides(invoke):
    options = "--loss next-token --shape 8 --padding 0 --vocabulary words.txt".split()
    done = invoke("update.safetensors", *options)
    assert done.exit_code == 0, done.output
    assert "The release leaks" in done.stdout
    assert attacks(invoke.folder)["language"]["metrics"]["certified"] == 2
    assert "leak" not in attacks(invoke.folder)["bag"] or not attacks(invoke.folder)["bag"]["leak"]


def adapter(place, rank):
    """One step of LoRA on what mixes the places, as PEFT writes it; nothing else is trained."""
    names = {}
    exec(MODEL, names)
    net, drawn = names["writer"](), torch.Generator().manual_seed(2)
    save_file(dict(net.state_dict()), place / "base.safetensors")
    layers = {f"mix.{i}": torch.randn(rank, 48, generator=drawn) / 7 for i in range(3)}
    own = adapted(net, layers, 2.0)
    rows = readers.load("notes.txt", reading=readers.TextReading("words.txt", 8)).inputs[INDEX]
    F.cross_entropy(
        own(rows)[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), ignore_index=0
    ).backward()
    named = {f"base_model.model.{n}.lora_A.weight": a for n, a in layers.items()}
    for name, b in own.named_parameters():
        named[f"base_model.model.{name}".replace("second", "lora_B")] = -0.1 * b.grad
    save_file(named, place / f"adapter{rank}.safetensors")
    return f"--adapter adapter{rank}.safetensors --base base.safetensors --scaling 2 --rate 0.1".split()


def test_an_adapter_gives_texts_away_as_far_as_its_rank_goes(invoke, place):
    where = ["--records", ",".join(map(str, INDEX)), "--loss", "next-token", "--batch-size", "2"]
    done = invoke(*adapter(place, 24), *where, *TEXTS)
    assert done.exit_code == 0, done.output
    found = attacks(invoke.folder)["language"]["metrics"]
    assert found["whole_texts"] == 1  # with the last token, although no output weight is trained
    assert found["certified"] == 2
    done = invoke(*adapter(place, 8), *where, *TEXTS, "--out", str(invoke.folder / "again"))
    assert done.exit_code == 2
    assert "as its layers are wide (8; adapters are as wide as their rank)" in done.stdout


@pytest.mark.parametrize(("model", "loss"), [("writer", "next-token"), ("encoder", "masked")])
def test_updates_that_are_made_here(invoke, model, loss):
    done = invoke(*"--made 1 --batch-size 2 --loss".split(), loss, *TEXTS, model=model)
    assert done.exit_code == 0, done.output
    assert "2 of 2 records" in done.stdout
    metrics = attacks(invoke.folder)["language"]["metrics"]
    assert metrics["whole_texts"] == 1
    assert metrics["certified"] == 2
    page = (invoke.folder / "report.html").read_text()
    assert ("[MASK]" in page) == (loss == "masked")


@pytest.mark.parametrize(
    ("options", "model", "sentence"),
    [
        (
            "",
            "writer",
            "loss: the model answers for every place of a text: say --loss next-token or",
        ),
        ("--loss next-token", "classifier", "it must return"),
        ("--loss next-token", "encoder", "depend on later tokens; say --loss masked"),
        ("--loss next-token --mask 2", "writer", "mask: only together with --loss masked"),
        ("--loss masked --mask 99", "writer", "mask: 99 given, the model's embedding has 60 rows"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(invoke, options, model, sentence):
    made = "--made 1 --batch-size 2".split()
    done = invoke(*made, *options.split(), *TEXTS, model=model)
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())
