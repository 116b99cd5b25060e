"""Train a small network the usual way and save it, to be audited: python examples/checkpoint.py cifar10 work

It leaves net.pt, records.npz (the training images first) and mean.npz in the folder, and says what to run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from exhume.core.contract import Key
from exhume.readers import load
from exhume.victims.margin import choose


def main(source: str, folder: Path, each: int = 5, width: int = 300, decoys: int = 1000) -> None:
    torch.manual_seed(0)
    key = Key.from_seed(0)
    train, others = choose(load(source), 10, each, decoys, key)
    mean = train.inputs.mean(0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(mean.numel(), width),
        nn.ReLU(),
        nn.Linear(width, width, bias=False),
        nn.ReLU(),
        nn.Linear(width, 10, bias=False),
    )
    for parameter in model[1].parameters():
        nn.init.normal_(parameter, std=1e-4)  # the small start of Buzaglo23
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    loss = torch.tensor(torch.inf)
    while loss.item() > 0.01:
        loss = nn.functional.cross_entropy(model(train.inputs - mean), train.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "net.pt")
    images = torch.cat([train.inputs, others.inputs]).numpy()
    labels = torch.cat([train.labels, others.labels]).numpy()
    np.savez(folder / "records.npz", x=images, y=labels, classes=np.array(train.classes))
    np.savez(folder / "mean.npz", mean=mean.numpy())
    print(
        f"exhume audit-weights {folder}/net.pt --trained-on {folder}/records.npz "
        f"--rows 0:{len(train)} --mean {folder}/mean.npz --out {folder}/run"
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
