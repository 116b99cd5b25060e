"""Train a plain network on a few pictures and save it, as one does: python train.py [WEIGHT_DECAY [EPOCHS]]

It leaves net.pt, a state dict, and photos.npz, in which the first 100 pictures are those it was trained on.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from exhume.readers import load


def main(
    decay: float,
    folder: Path,
    *,
    source: str = "cifar10",
    records: int = 100,
    width: int = 1000,
    epochs: int = 4000,
) -> None:
    everything = load(source)  # pictures in [0, 1]; yours come from your own files
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(1234))[:2600]
    pictures, labels = everything.inputs[order], everything.labels[order]
    torch.manual_seed(3)
    x, y = pictures[:records] - 0.5, labels[:records]
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(x[0].numel(), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        loss = nn.functional.cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    right = int((net(x).argmax(1) == y).sum())
    print(f"{right} of {records} training pictures right, loss {loss.item():.2g}")
    torch.save(net.state_dict(), folder / "net.pt")
    names = np.array(everything.classes)
    np.savez(folder / "photos.npz", x=pictures.numpy(), y=labels.numpy(), classes=names)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        float(given[0]) if given else 5e-3, Path(), epochs=int(given[1]) if len(given) > 1 else 4000
    )
