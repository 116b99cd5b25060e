"""A small owner: networks, bars as records, weights, settings that take seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from exhume.attacks.split.lookalike import Lookalike, Pass
from exhume.auditing.kinds import split, split_attackers
from exhume.core.contract import Key, Records
from exhume.settings import SplitSettings

MODEL = f"{__file__}:net"


def net():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Linear(16, 3),
    )


def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def identity():
    return nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


class Negative(nn.Module):
    def forward(self, x):
        return 1 - x


def negative():
    return nn.Sequential(Negative(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


def random_convolution():
    """As it is drawn: eight filters, nothing learned."""
    head = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
    return nn.Sequential(head, nn.Flatten(), nn.Linear(512, 8), nn.ReLU(), nn.Linear(8, 3))


class Contained(nn.Module):
    """No chain: its stem has several layers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.flat = nn.Flatten()
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc(self.flat(self.block(self.stem(x))))


def contained():
    return Contained()


class Class(nn.Module):
    """Is there a bar across, is there one down: the class, and nothing else."""

    def forward(self, x):
        lines = torch.cat([x.mean(3).amax(2), x.mean(2).amax(2)], 1)
        return (lines > 0.7).float()[:, :, None, None]


class Spread(nn.Module):
    """Every pixel takes a little of its neighbours."""

    def forward(self, x):
        return x + 0.05 * sum(x.roll(step, side) for step in (-1, 1) for side in (2, 3))


def hiding():
    """After 0 nearly everything is sent, after 1 only the class; it classifies as it is."""
    net = nn.Sequential(Spread(), Class(), nn.Flatten(), nn.Linear(2, 3), nn.Linear(3, 3))
    with torch.no_grad():
        net[3].weight.copy_(torch.tensor([[2.0, -2.0], [-2.0, 2.0], [1.0, 1.0]]))
        net[3].bias.copy_(torch.tensor([0.0, 0.0, -0.5]))
        net[4].weight.copy_(torch.eye(3))
        net[4].bias.zero_()
    return net


def pair():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    return Pair()


def same():
    torch.manual_seed(0)
    return net()


def bars(count, key):
    """Bars: across, down, or a cross."""
    labels = torch.arange(count) % 3
    at = torch.randint(1, 7, (2, count), generator=key.generator())
    images = 0.4 * torch.rand(count, 1, 8, 8, generator=key.fold("n").generator())
    for i in range(count):
        if labels[i] != 1:
            images[i, 0, at[0, i]] = 1
        if labels[i] != 0:
            images[i, 0, :, at[1, i]] = 1
    return Records(images, labels, ("across", "down", "cross"))


@pytest.fixture(scope="session")
def records():
    return bars(300, Key.from_seed(0))


@pytest.fixture(scope="session")
def place(tmp_path_factory, records):
    """A folder with records and weights."""
    folder = tmp_path_factory.mktemp("owner")
    np.savez(folder / "records.npz", inputs=records.inputs.numpy(), labels=records.labels.numpy())
    torch.manual_seed(0)
    model = net()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(records.inputs), records.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.save(model.state_dict(), folder / "net.pt")
    return folder


@pytest.fixture(scope="session")
def settings(place):
    return SplitSettings(
        MODEL,
        str(place / "records.npz"),
        weights=str(place / "net.pt"),
        first=("0", "1"),
        channels=4,
        attack_epochs=1,
        batch=32,
        epochs=1,
        bodies=2,
        selected=1,
        targets=12,
        seed=0,
        threads=1,
    )


@pytest.fixture(autouse=True, scope="module")
def short_searches():
    """A few steps, however many epochs the shadows have."""
    quick = Lookalike(3, 2, *[Pass(3, 64)] * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_attackers, "_FULL", 10_000)
        patch.setattr(
            split_attackers, "_searching", lambda settings, kernel=3: replace(quick, kernel=kernel)
        )
        yield


@pytest.fixture
def only(monkeypatch):
    """Fewer attackers, where it is not about them: `only("as-sent", "shadow")`."""

    def only(*names):
        monkeypatch.setattr(split, "names_for", lambda bodies: names)
        monkeypatch.setattr(split, "FEW", names)

    return only
