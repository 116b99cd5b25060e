"""Why named records do not give an update: the true cause, said before anything is attacked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from exhume import readers
from exhume.auditing.kinds.update import read_updates
from exhume.auditing.kinds.update_files import ClientUpdate
from exhume.auditing.premise import agreement_of
from exhume.cli import app
from exhume.core.contract import Gradient
from exhume.models.mlp import MLP
from exhume.settings import Brief, UpdateSettings
from exhume.train.local import Steps

NET = MLP((1, 8, 8), (60,), 10, "relu")
SOURCE = """
import torch
from torch import nn

def seeded():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 150), nn.ReLU(), nn.Linear(150, 10))

def unseeded():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 150), nn.ReLU(), nn.Linear(150, 10))
"""


def focal(outputs, labels):
    each = F.cross_entropy(outputs, labels, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


LOSSES = {
    "plain": F.cross_entropy,
    "smoothed": lambda outputs, labels: F.cross_entropy(outputs, labels, label_smoothing=0.1),
    "focal": focal,
}


def update_of(records, key, loss="plain", times=1.0):
    """Written out: the gradient of this loss, times a factor."""
    start = (2 if loss == "focal" else 1) * NET.initial(key)  # its answers differ, record by record
    module = NET.build()
    parameters = {n: p.clone().requires_grad_() for n, p in NET.layout.split(start).items()}
    outputs = torch.func.functional_call(module, parameters, (records.inputs,))
    slopes = torch.autograd.grad(LOSSES[loss](outputs, records.labels), list(parameters.values()))
    values = times * NET.layout.join(dict(zip(parameters, slopes, strict=True)))
    sent = Gradient(values[None], NET.layout, start)
    return ClientUpdate("3", 1, sent, NET, len(records), Steps(), averaged=True, checked=())


@pytest.fixture
def own(key):
    digits = readers.load("digits")
    return digits[torch.randperm(len(digits), generator=key.generator())[:6]]


@pytest.mark.parametrize(
    ("loss", "times", "kind", "value"),
    [
        ("plain", -1.0, "sign", -1.0),
        ("plain", -0.01, "sign", -0.01),
        ("smoothed", 1.0, "smoothing", 0.1),
        ("focal", 1.0, "focal", 2.0),
    ],
)
def test_the_cause_is_found(own, key, loss, times, kind, value):
    found = agreement_of(update_of(own, key, loss, times), own)
    assert found.wrong
    assert found.cause.kind == kind
    assert found.cause.value == pytest.approx(value, rel=0.01)
    assert "order" not in found.sentence


@pytest.mark.parametrize(("loss", "times"), [("plain", -1.0), ("smoothed", 1.0), ("focal", 1.0)])
def test_no_cause_excuses_other_records(key, own, loss, times):
    digits = readers.load("digits")
    others = replace(own, inputs=digits.inputs[:6])
    found = agreement_of(update_of(own, key, loss, times), others)
    assert found.wrong
    assert found.cause is None


def test_multiples_and_counts_are_doubts(own, key):
    tenth = agreement_of(update_of(own, key, times=0.1), own)
    assert tenth.scaled
    assert not tenth.wrong
    assert "times 0.1" in tenth.doubt
    miscounted = agreement_of(replace(update_of(own, key), batch_size=5), own)
    assert miscounted.cause.kind == "count"
    assert miscounted.cause.value == 6
    assert "the batch size is 6, not 5" in miscounted.doubt
    assert agreement_of(update_of(own, key), own).doubt == ""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "nets_of_causes.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gradient(net, records, path="g.safetensors", times=1.0):
    space = {}
    exec(SOURCE, space)
    module = space[net]()
    F.cross_entropy(module(records.inputs), records.labels).backward()
    save_file({n: times * p.grad for n, p in module.named_parameters()}, path)


def test_order_is_blamed_only_where_another_order_fits(place, own, few_digits):
    generator = np.random.default_rng(0)
    for number in range(1, 13):
        folder = place / "images" / ("a" if number < 7 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 255, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    records = readers.load("images")  # 1 to 6, 7 to 12
    settings = UpdateSettings(
        model="nets_of_causes.py:seeded",
        update="g.safetensors",
        data="images",
        records="6,7",
        batch_size=2,
        seed=0,
    )
    expected = {"order": [9, 10], "": [0, 1]}  # files 10 and 11, torchvision's first of b
    for kind, rows in expected.items():
        gradient("seeded", records[torch.tensor(rows)])
        case = read_updates(Brief(update=settings), lambda source, _: readers.load(source))
        assert case.truth.strange == {"client"}
        assert ("torchvision" in case.truth.wrong) == bool(kind)


def test_doubts_are_said_with_the_plan(place, own, few_digits):
    def said(*more, net="seeded"):
        usual = ["--data", few_digits, "--records", "3,17,40,41", "--dry-run"]
        usual += ["--model", f"nets_of_causes.py:{net}", *more]
        return " ".join(
            CliRunner().invoke(app, ["audit-update", "g.safetensors", *usual]).stdout.split()
        )

    records = readers.load("digits")[torch.tensor([3, 17, 40, 41])]
    gradient("seeded", records)
    assert "doubt" not in said("--batch-size", "4")
    assert (
        "doubt: the records named for client client give this update: the batch size is 4"
        in said("--batch-size", "5")
    )
    assert "doubt: the factory nets_of_causes.py:unseeded draws new weights" in said(net="unseeded")
    gradient("seeded", records, times=-1.0)
    assert "with its sign turned" in said("--batch-size", "4")
