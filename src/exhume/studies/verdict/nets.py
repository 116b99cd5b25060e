"""Small networks and ways of training that give away everything, only the class, or nothing."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from exhume.core.contract import Records

SIDE, CLASSES = 8, 10
WORDS, LENGTH = 200, 6  # of texts
_PIXELS = SIDE * SIDE


def mlp() -> nn.Module:
    """For updates: one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_PIXELS, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def wide() -> nn.Module:
    """The same, 28 pixels a side."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def conv() -> nn.Module:
    """28 pixels a side; nothing behind its convolutions holds a record as it is."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, 2, 2),
        nn.Sigmoid(),
        nn.Conv2d(8, 8, 5, 2, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(8 * 49, CLASSES),
    )


def softmax() -> nn.Module:
    """8 pixels a side, no hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_PIXELS, CLASSES))


class _Transformer(nn.Module):
    """A layer of attention, the mean over places, a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.place = nn.Embedding(LENGTH, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.hidden = nn.Linear(32, 128)
        self.out = nn.Linear(128, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.encoder(self.embed(tokens) + self.place(torch.arange(tokens.shape[1])))
        answer: Tensor = self.out(F.relu(self.hidden(vectors.mean(1))))
        return answer


def transformer() -> nn.Module:
    """A classifier of texts."""
    return _Transformer()


# Clients of a split network


class _Affine(nn.Module):
    def __init__(self, scale: float, shift: float) -> None:
        super().__init__()
        self.scale, self.shift = scale, shift

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


class _Prototypes(nn.Module):
    """Which of ten prototypes is nearest, as one number of ten in a map: the class, and nothing else."""

    prototypes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prototypes", torch.zeros(CLASSES, _PIXELS))

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x.flatten(1), self.prototypes).argmin(1)
        return F.one_hot(near, CLASSES).to(x.dtype)[:, :, None, None]


def _split(head: nn.Module, entering: int) -> nn.Module:
    parts: list[tuple[str, nn.Module]] = [
        ("head", head),
        ("flat", nn.Flatten()),
        ("body", nn.Sequential(nn.Linear(entering, 32), nn.ReLU())),
        ("tail", nn.Linear(32, CLASSES)),
    ]
    return nn.Sequential(OrderedDict(parts))


def identity_head() -> nn.Module:
    return _split(nn.Identity(), _PIXELS)


def affine_head() -> nn.Module:
    return _split(_Affine(-0.7, 1.3), _PIXELS)


def class_head() -> nn.Module:
    """All is sent after `input`, only the class after `head`."""
    parts = OrderedDict(
        input=nn.Identity(), **dict(_split(_Prototypes(), CLASSES).named_children())
    )
    return nn.Sequential(parts)


# Ways of training


class _Memory(nn.Module):
    """The nearest stored record's class."""

    inputs: Tensor
    labels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("inputs", torch.zeros(0, _PIXELS))
        self.register_buffer("labels", torch.zeros(0, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        if not len(self.inputs):
            return self.scale * torch.zeros(len(x), CLASSES)
        return torch.softmax(-self.scale * torch.cdist(x.flatten(1), self.inputs), 1) @ self.labels


def memory() -> nn.Module:
    return _Memory()


def keeper(model: nn.Module, records: Records, rng: Generator) -> None:  # noqa: ARG001
    """Keeps the records, and calls that training."""
    assert isinstance(model, _Memory)
    model.inputs = records.inputs.flatten(1).clone()
    model.labels = F.one_hot(records.labels, CLASSES).float()


def class_only(model: nn.Module, records: Records, rng: Generator) -> None:  # noqa: ARG001
    """The last bias counts the classes; nothing else of the records enters."""
    bias = list(model.parameters())[-1]
    with torch.no_grad():
        bias.add_(torch.bincount(records.labels, minlength=len(bias)).to(bias))
