"""The audit of a convolutional network's checkpoint: images behind convolutions, or a sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from exhume import readers
from exhume.attacks.margin.reading import FeaturePremises
from exhume.auditing import audit
from exhume.auditing.attack import line_ups
from exhume.auditing.kinds.checkpoint import read_released_checkpoint
from exhume.auditing.kinds.checkpoint_approach import approach_to, decayed
from exhume.auditing.kinds.checkpoint_conditions import Fit, doubt_of, feature_conditions
from exhume.auditing.kinds.checkpoint_records import CONTRAST, Preprocessing
from exhume.core.contract import ExhumeError, Key, NotApplicable, Records, silent
from exhume.models.cnn import CNN
from exhume.readers.checkpoint import read_checkpoint
from exhume.report.folder import RunFolder
from exhume.settings import Brief, CheckpointSettings
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

TRAINED = 6
pytestmark = pytest.mark.xdist_group("convolved checkpoint")
NET = CNN((1, 8, 8), (12,), (3,), (1,), (40,), 3, "relu", "torch")
OWN = """
from torch import nn

from exhume.models.cnn import CNN

def ours():
    return CNN((1, 8, 8), (12,), (3,), (1,), (40,), 3, "relu", "torch")

def make():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(432, 40), nn.ReLU(), nn.Linear(40, 3)
    )

def pooled():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 40), nn.Linear(40, 3)
    )

def normed():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))

def dropping():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Dropout(), nn.Linear(144, 3))

def pooling():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """decayed.pt and kept.pt, own.pt with other names for the same, on the first rows of images.npz."""
    folder = tmp_path_factory.mktemp("convolved")
    digits = readers.load("digits")
    each = [(digits.labels == c).nonzero()[:, 0] for c in range(3)]
    rows = torch.cat([*(one[:2] for one in each), *(one[2:120] for one in each)])
    images, labels = digits.inputs[rows], digits.labels[rows]
    mean = images[:TRAINED].mean(0)
    centred = Records(images[:TRAINED] - mean, labels[:TRAINED], ("0", "1", "2"))
    start, key = NET.initial(Key.from_seed(1)), Key.from_seed(2)
    for name, descent in (
        ("decayed", Descent(400, 0.15, 0.9, 0.02)),
        ("kept", Descent(50, 0.1, 0.9)),
    ):
        recipe = FullBatch(NET, descent)
        flat = recipe.fit(start, centred, centred.none_for(1), key)[0]
        torch.save(NET.layout.split(flat), folder / f"{name}.pt")
    state = torch.load(folder / "decayed.pt")
    places = {"conv1": "0", "fc1": "3", "fc2": "5"}
    renamed = {f"{places[n.split('.')[0]]}.{n.split('.')[1]}": t for n, t in state.items()}
    torch.save(renamed, folder / "own.pt")
    np.savez(folder / "images.npz", x=images.numpy(), y=labels.numpy())
    np.savez(folder / "mean.npz", mean=mean.numpy())
    (folder / "nets.py").write_text(OWN)
    return folder


@pytest.fixture
def settings(folder):
    return CheckpointSettings(
        str(folder / "decayed.pt"),
        model=f"{folder}/nets.py:ours",
        mean=str(folder / "mean.npz"),
        trained_on=str(folder / "images.npz"),
        rows=f"0:{TRAINED}",
        restarts=2,
        steps=150,
    )


def test_images_behind_convolutions_leak_and_every_condition_holds(settings, folder, tmp_path):
    """The user's own module; the built-in network has the same weights and gives the same images."""
    own = replace(settings, checkpoint=str(folder / "own.pt"), model=f"{folder}/nets.py:make")
    done = audit(Brief.of(own), tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert done.leak.successes >= TRAINED / 2
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["attacks"][0]["id"] == "feature-span"
    assert [one["holds"] for one in written["conditions"]] == [True] * 5
    assert written["conditions"][0]["found"].startswith("6 by 3's spectrum, behind them ")
    assert written["victim"]["architecture"] == "nets.py:make with 17,563 parameters"
    assert "5 of 5 conditions hold" in done.report.read_text()


def test_a_network_of_ours_is_named_too(folder):
    read = read_checkpoint(
        folder / "decayed.pt", activation="relu", shape=(1, 8, 8), model=f"{folder}/nets.py:ours"
    )
    assert str(read.architecture) == str(NET)
    assert read.architecture.outputs == 3
    assert read.inferred[-1] == "The network is nets.py:ours."
    assert approach_to(read).records == TRAINED
    own = read_checkpoint(
        folder / "own.pt", activation="relu", shape=(1, 8, 8), model=f"{folder}/nets.py:make"
    )
    assert torch.equal(own.release.parameters, read.release.parameters)
    one, two = (own.architecture.initial(Key.from_seed(seed)) for seed in (0, 1))
    assert not torch.equal(one, two)  # where controls begin


def test_without_decay_it_is_not_audited(settings, folder, tmp_path):
    kept = replace(settings, checkpoint=str(folder / "kept.pt"))
    done = audit(Brief.of(kept), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "fc1 keeps its random start" in done.verdict.sentence
    assert done.result.conditions[1].holds is False
    assert "✗" in done.report.read_text()


def test_without_the_truth_the_images_are_shown(settings, tmp_path):
    blind = replace(settings, trained_on=None, rows="", shape=(1, 8, 8), restarts=1, steps=3)
    done = audit(Brief.of(blind), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "outside the span of fc1" in done.result.attacks[0].notes[0]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("normed", r"1 \(BatchNorm2d\) takes statistics over the batch, so that no layer is a sum"),
        ("dropping", r"2 \(Dropout\) drops inputs at random, so that no layer is a sum"),
        ("pooling", "no fully connected layer takes one vector a record"),
        ("", "0.weight: a convolution .* not in the file; name your nn.Module with --model"),
    ],
)
def test_what_it_cannot_read_is_not_audited(settings, folder, tmp_path, model, why):
    """Each says what to use instead."""
    spec = f"{folder}/nets.py:{model or 'make'}"
    module = _made(folder, model or "make")
    torch.save(module.state_dict(), tmp_path / "net.pt")
    said = replace(settings, checkpoint=str(tmp_path / "net.pt"), model=spec if model else None)
    done = audit(Brief.of(said), tmp_path / "run")
    assert done.verdict.word == "not audited"
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(done.verdict.sentence)
    assert "[victim]" in done.verdict.sentence


def test_another_model_is_an_error(folder):
    for model, why in (("pooled", "it comes from another model"), ("normed", "lacks|wants")):
        with pytest.raises(ExhumeError, match=why):
            read_checkpoint(
                folder / "own.pt",
                activation="relu",
                shape=(1, 8, 8),
                model=f"{folder}/nets.py:{model}",
            )
    with pytest.raises(ExhumeError, match="does not take records of shape"):
        read_checkpoint(
            folder / "own.pt", activation="relu", shape=(1, 9, 9), model=f"{folder}/nets.py:make"
        )


def test_a_batch_norm_without_a_model_is_refused(tmp_path):
    named = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).state_dict()
    torch.save(named, tmp_path / "net.pt")
    with pytest.raises(NotApplicable, match="1: a batch norm leaves the length"):
        read_checkpoint(tmp_path / "net.pt", activation="relu", shape=(1, 8, 8))


def test_preprocessing_goes_into_the_network():
    shape, std = (1, 2, 2), torch.full((1, 2, 2), 0.25)
    plain, shift, scale = Preprocessing(shape, torch.full(shape, 0.3), std).in_the_network()
    assert (shift, plain.std) == (None, None)
    assert scale is std
    assert float(plain.middle.mean()) == pytest.approx(0.3)
    grey, shift, _ = Preprocessing(shape, torch.zeros(shape)).in_the_network()
    records = torch.rand(3, *shape)
    torch.testing.assert_close(grey.entering(records) + shift, records)
    assert grey.size == 2 * CONTRAST


def test_a_scaled_network_is_the_same_function(folder):
    read = read_checkpoint(
        folder / "decayed.pt", activation="relu", shape=(1, 8, 8), model=f"{folder}/nets.py:ours"
    )
    plain, records = read.architecture, torch.rand(2, 1, 8, 8)
    scaled = replace(plain, shift=torch.full((1, 8, 8), 0.5), scale=torch.full((1, 8, 8), 2.0))
    torch.testing.assert_close(scaled.build()(records), plain.build()((records + 0.5) / 2))
    assert scaled.layout == plain.layout


GOOD = FeaturePremises("fc1", 50, 40.0, 1e-5, 100, 4608, 3072)


@pytest.mark.parametrize(
    ("change", "fit", "place", "why"),
    [
        ({"fall": 1.2}, {}, 0, "fc1's spectrum runs into the noise"),
        ({"records": 12}, {}, 0, "show 12 records where 50 were trained on"),
        ({"left": 0.5}, {}, 1, r"fc1 keeps its random start \(50% of it\)"),
        ({"features": 2000}, {}, 2, "too few features: 1,900 equations for the 3,072 pixels"),
        ({}, {"right": 0.5, "residual": None}, 3, "gets only 50%"),
        ({}, {"residual": 0.6}, 4, "leave 60% of fc1 unexplained"),
    ],
)
def test_each_condition_that_fails_is_said(change, fit, place, why):
    rows = feature_conditions(
        replace(GOOD, **change), replace(Fit(50, right=1.0, residual=0.01), **fit)
    )
    assert [at for at, row in enumerate(rows) if not row.holds] == [place]
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(doubt_of(rows))
    assert len(feature_conditions(GOOD, None)) == 3


def test_a_control_is_the_same_network_with_decay(settings, folder, tmp_path, monkeypatch):
    """Trained here on decoys; so few steps show that it runs, not that it works."""
    monkeypatch.setattr("exhume.auditing.kinds.checkpoint._COUNTS", (4,))
    monkeypatch.setattr(
        "exhume.auditing.kinds.checkpoint_approach._CONVOLVED", Descent(300, 0.1, 0.9, 0.02)
    )
    brief = Brief.of(replace(settings, restarts=1, steps=20)).resolved()
    release = read_released_checkpoint(brief, lambda source, _: readers.load(source))
    (ladder,) = release.ladders()
    rung = next(rung for rung in ladder.rungs if rung.value == "4")
    assert ladder.respect == "training records, with weight decay"
    with RunFolder.claimed(tmp_path / "run", resume_anyway=False, progress=lambda *_: None) as run:
        case = rung.case(run, silent)
        row = line_ups(case, case.rows(), run.store(), silent, tests=1)["feature-span"]
    assert row.targets == 4
    assert decayed(NET).descent.weight_decay > 0


def _made(folder, name):
    found = {}
    exec((folder / "nets.py").read_text(), found)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return found[name]()
