"""Split training and attacks follow the device of their records: `meta`, which mixes with nothing.

A training is followed as far as its first loss and the gradients of it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from exhume.attacks.split import inversion, shadow
from exhume.attacks.split.inversion import QueriedInversion, ShadowInversion, TrueHeadInversion
from exhume.attacks.split.lookalike import LayerFit, Pass, Windows
from exhume.core.contract import Knowledge, Records
from exhume.defences.split import dropout_ensemble, ensembler, single
from exhume.defences.split.channel import Channel
from exhume.defences.split.dropout_ensemble import DropoutEnsemble
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Dropout, ForeignHead, Noise, RandomHead, Shredder
from exhume.models.drawing import he_normal
from exhume.models.split.channel import FreshNoise
from exhume.models.split.cost import multiply_adds
from exhume.models.split.inverter import Decoder, OwnForm, ShadowHead
from exhume.models.split.pipeline import undefended
from exhume.store.shards import NullStore
from exhume.train import single as training
from exhume.train.single import SplitJob, augmented_images

MODULES = (training, single, dropout_ensemble, ensembler, shadow, inversion)


class Reached(Exception):
    """The first loss of a training, whose gradients were computed."""


@dataclass(frozen=True)
class Small:
    input_shape: tuple[int, ...] = (1, 8, 8)

    def module(self, key):
        first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        second = nn.Sequential(nn.Conv2d(4, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU())
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
        parts = OrderedDict(one=first, two=second, pool=pool, fc=nn.Linear(32, 3))
        return he_normal(lambda: nn.Sequential(parts), key)


@pytest.fixture
def records():
    return Records(torch.rand(20, 1, 8, 8), torch.arange(20) % 3, tuple("abc")).to("meta")


@pytest.fixture
def job(records):
    return SplitJob(Small(), "one", "pool", records)


@pytest.fixture(autouse=True)
def first_loss_only(monkeypatch, key):
    """No digest can be taken of what holds no numbers, and no step be judged."""

    def first_loss(module, loss, count, schedule, **_):
        devices = {t.device.type for t in module.state_dict().values()}
        found = loss(torch.arange(6), key.generator())
        torch.autograd.backward(found)
        raise Reached({*devices, found.device.type})

    for module in MODULES:
        for name, stand_in in (("digest", lambda value: ""), ("train_module", first_loss)):
            if name in vars(module):
                monkeypatch.setattr(module, name, stand_in)


def reached(train):
    with pytest.raises(Reached) as stopped:
        train()
    assert stopped.value.args == ({"meta"},)


@pytest.mark.parametrize(
    "defence",
    [
        Noise(0.5),
        Dropout(0.5),
        RandomHead(),
        ForeignHead(),
        DropoutEnsemble(2, 0.3),
        Channel(0.3, 4),
    ],
    ids=str,
)
def test_defences(defence, job, key):
    reached(lambda: defence.train(job, key=key, store=NullStore()))


def test_defences_around_what_is_trained_already(job, key, monkeypatch):
    parts = tuple(job.fresh(key.fold(i)) for i in range(2))
    stage = Ensembler(2, 1)
    reached(lambda: stage.stage_two(job, parts, (1,), key=key, store=NullStore()))
    monkeypatch.setattr(single, "train_split", lambda job, **_: job.fresh(key))
    reached(lambda: Shredder(0.5).train(job, key=key, store=NullStore()))


@pytest.mark.parametrize(
    "attack",
    [
        ShadowInversion((0,), ShadowHead(4), Decoder(4), match=1.0),
        ShadowInversion("learned", OwnForm(Small(), "one", "pool"), Decoder(4)),
        TrueHeadInversion(Decoder(4)),
        QueriedInversion(Decoder(4)),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_attacks(attack, job, key):
    split = job.fresh(key)
    split.whole.eval().requires_grad_(False)
    sent = split.head(job.records.inputs)
    parts = {"body0": split.body, "head": split.head, "fresh": FreshNoise(0.1)}
    known = Knowledge(shadow=job.records, features=(4, 8, 8), parts=parts, seen=sent, answers=sent)
    reached(lambda: attack.prepare(known, key=key, store=NullStore()))


def test_the_search_for_a_first_layer(key):
    """Windows, starts and the distance of a step; the whitening needs numbers, so it is put in afterwards."""
    images, seen = torch.rand(6, 1, 8, 8), torch.rand(6, 4, 8, 8)
    fit = LayerFit(Windows.between((1, 8, 8), (4, 8, 8), 3), images, seen, key)
    for name in ("images", "seen", "scale", "mean", "white"):
        setattr(fit, name, getattr(fit, name).to("meta"))
    found = fit.start(2)
    assert {one.device.type for one in found} == {"meta"}
    ended = fit.descend(found, Pass(2, 8, 4), lambda *_: None, "test")
    assert {one.device.type for one in ended} == {"meta"}


def test_networks_and_images(job, key):
    whole = Small().module(key).to("meta")
    pipeline = undefended(whole, "one", "pool", (1, 8, 8))
    assert pipeline(job.records.inputs).device.type == "meta"
    there = undefended(Small().module(key), "one", "pool", (1, 8, 8)).to(torch.device("meta"))
    assert there(job.records.inputs).device.type == "meta"
    assert multiply_adds(whole, (1, 8, 8)) == multiply_adds(Small().module(key), (1, 8, 8)) > 0
    moved = augmented_images(job.records.inputs, key.generator())
    assert (moved.device.type, moved.shape) == ("meta", (20, 1, 8, 8))
