"""Heads that mix or rename numbers and hide nothing are at risk at least; the raw input earns no trust."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from exhume import readers
from exhume.auditing import audit
from exhume.auditing.kinds.split import SplitCase
from exhume.auditing.kinds.split_files import read_split
from exhume.models.split.cut import mixes
from exhume.settings import Brief, SplitSettings

MODEL = f"{__file__}:"


class Fixed(nn.Module):
    """A square matrix of the pixels, which is no parameter."""

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, x):
        return (x.flatten(1) @ self.matrix.T).view_as(x)


class Renamed(nn.Module):
    """Every grey value has another one in its place, at each pixel by a table of its own."""

    def __init__(self):
        super().__init__()
        orders = [torch.randperm(17, generator=torch.Generator().manual_seed(i)) for i in range(64)]
        self.register_buffer("tables", torch.stack(orders))

    def forward(self, x):
        levels = (x.flatten(1) * 16).round().long()
        return (self.tables[torch.arange(64), levels].float() / 16).view_as(x)


def cosines():
    at, wave = torch.arange(8) + 0.5, torch.arange(8)[:, None]
    basis = torch.cos(math.pi * at * wave / 8) / 2
    basis[0] /= math.sqrt(2)
    return torch.kron(basis, basis)


def behind(*head):
    return nn.Sequential(
        nn.Identity(),
        nn.Sequential(*head),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()),
        nn.Linear(32, 10),
    )


def dct():
    return behind(Fixed(cosines()))


def permutation():
    return behind(
        Fixed(torch.eye(64)[torch.randperm(64, generator=torch.Generator().manual_seed(0))])
    )


def orthogonal():
    turned, _ = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    return behind(Fixed(turned))


def renamed():
    return behind(Renamed())


@pytest.fixture(scope="module")
def digits():
    return readers.load("digits")


@pytest.fixture(scope="module")
def given(digits, tmp_path_factory):
    """How to audit one of these networks, trained for a moment."""
    folder = tmp_path_factory.mktemp("mixing")
    np.savez(folder / "digits.npz", x=digits.inputs.numpy(), y=digits.labels.numpy())

    def given(name):
        torch.manual_seed(0)
        net = globals()[name]()
        optimiser = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(40):
            loss = nn.functional.cross_entropy(net(digits.inputs[:900]), digits.labels[:900])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        torch.save(net.state_dict(), folder / f"{name}.pt")
        return SplitSettings(
            MODEL + name,
            str(folder / "digits.npz"),
            weights=str(folder / f"{name}.pt"),
            first=("1",),
            second="2",
            channels=4,
            attack_epochs=1,
            targets=40,
            seed=0,
            threads=1,
        )

    return given


@pytest.mark.parametrize("name", ["dct", "permutation", "orthogonal", "renamed"])
def test_whoever_knows_a_head_that_hides_nothing_gets_everything(name, given, tmp_path, only):
    only("as-sent", "head-known")
    done = audit(Brief.of(given(name)), tmp_path / "run")
    assert done.verdict.word in ("at risk", "leaks")
    assert done.result.attacks[-1].lineup.share > 0.9


def test_nobody_who_knows_the_head_nothing_is_known(given, tmp_path, only):
    only("as-sent")
    done = audit(Brief.of(given("dct")), tmp_path / "run")
    assert done.verdict.word == "not audited"


def test_what_mixes(digits):
    some = digits.inputs[:50]
    for name, mixed in (("dct", 1), ("orthogonal", 1), ("permutation", 0), ("renamed", 0)):
        assert mixes(globals()[name]()[:2], some) == mixed
    convolution = nn.Conv2d(1, 4, 3, padding=1)
    torch.manual_seed(0)
    assert mixes(nn.Sequential(convolution, nn.ReLU()), some)
    assert not mixes(nn.Conv2d(1, 4, 1), some)
    assert mixes(nn.AvgPool2d(2), some)

    class Beside(nn.Module):
        def forward(self, x):
            return torch.cat([x, convolution(x)], 1)

    assert not mixes(Beside(), some)
    assert not mixes(nn.Identity(), some)


def test_the_raw_input_is_no_rung(given, digits):
    deep = replace(given("dct"), first=("1",))
    case = SplitCase(deep, digits, read_split(deep, digits))
    assert case.owned.shallower() == ()
    assert case.ladders() == []
    bare = replace(deep, first=("0",), defend="single", train=300)
    assert SplitCase(bare, digits, read_split(bare, digits)).ladders() == []
