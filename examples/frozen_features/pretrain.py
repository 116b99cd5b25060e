"""What the publisher of the features did: trained them on public digits. `python pretrain.py`"""

import torch
import torch.nn.functional as F
from model import FILE, features
from records import public
from torch import nn


def main(steps: int = 200) -> None:
    torch.manual_seed(0)
    images, labels = public().tensors
    learned = features()
    network = nn.Sequential(learned, nn.Linear(64, 10))
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(steps):
        rows = torch.randint(len(labels), (64,))
        optimiser.zero_grad()
        F.cross_entropy(network(images[rows]), labels[rows]).backward()
        optimiser.step()
    torch.save(learned.state_dict(), FILE)


if __name__ == "__main__":
    main()
