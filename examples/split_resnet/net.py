"""A small residual network, trained the usual way and saved, ready for `exhume audit-split`.

    python examples/split_resnet/net.py cifar10 work [EPOCHS [RECORDS]]

It is somebody's own network: a plain `nn.Module` with a residual connection, nothing of ours in it.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride)
        self.out = nn.ReLU()  # a module of its own, so that the network can be cut behind it

    def forward(self, x):
        return self.out(self.norm(self.two(F.relu(self.one(x)))) + self.short(x))


class Net(nn.Module):
    """Images in [0, 1]; their normalisation is part of the network."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.normalise = nn.BatchNorm2d(channels, affine=False)
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.block1 = Residual(width, width, 1)
        self.block2 = Residual(width, 2 * width, 2)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.flat = nn.Flatten()
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = F.relu(self.stem(self.normalise(x)))
        return self.fc(self.flat(self.pool(self.block2(self.block1(x)))))


def net() -> nn.Module:
    """What `exhume audit-split` calls; sizes come from the environment, for the sake of the example."""
    channels, classes, width = (int(v) for v in os.environ.get("NET", "3,10,16").split(","))
    return Net(channels, classes, width)


def main(source: str, work: Path, *, width: int = 16, epochs: int = 10, records: int = 20_000):
    from exhume import readers

    every = readers.load(source)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
    trained = every[order[:records]]
    os.environ["NET"] = f"{trained.shape[0]},{len(every.classes)},{width}"
    torch.manual_seed(0)
    model = net()
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(trained)), 64):
            loss = F.cross_entropy(model(trained.inputs[rows]), trained.labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    work.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), work / "net.pt")
    command = [
        *("exhume", "audit-split", f"{Path(__file__).resolve()}:net"),
        *("--weights", str(work / "net.pt"), "--data", source),
        *("--first", "stem,block1.out,block2.out", "--second", "flat", "--out", str(work / "run")),
    ]
    sys.stdout.write(f"NET={os.environ['NET']} {shlex.join(command)}\n")


if __name__ == "__main__":
    sizes = dict(zip(("epochs", "records"), map(int, sys.argv[3:])))
    main(sys.argv[1], Path(sys.argv[2]), **sizes)
