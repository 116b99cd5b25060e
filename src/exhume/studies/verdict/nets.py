"""Small networks and ways of training that give away everything, only the class, or nothing."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from exhume.core.contract import Records

SIDE, CLASSES = 8, 10
WORDS, LENGTH = 200, 6  # of texts
GREYS = 17  # of digits
_PIXELS = SIDE * SIDE
_ROWS = 40  # of parameters that keep records


def mlp() -> nn.Module:
    """For updates: one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_PIXELS, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def wide() -> nn.Module:
    """One hidden layer, 28 pixels a side."""
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


def dropping() -> nn.Module:
    """What people train: convolutions with batch norm, then dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(8 * _PIXELS, CLASSES),
    )


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


class _Turned(nn.Module):
    """A fixed matrix of the pixels."""

    matrix: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("matrix", torch.zeros(prod(shape), _PIXELS))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.matrix.T).reshape(-1, *self.shape)


class _Renamed(nn.Module):
    """At every pixel each grey value has another one in its place, by a table of the pixel's own."""

    tables: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("tables", torch.zeros(_PIXELS, GREYS, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        levels = (x.flatten(1) * (GREYS - 1)).round().long()
        named = self.tables[torch.arange(_PIXELS), levels]
        return (named.to(x.dtype) / (GREYS - 1)).view_as(x)


def turned_head() -> nn.Module:
    """As many numbers as pixels."""
    return _split(_Turned(1, SIDE, SIDE), _PIXELS)


def projected_head() -> nn.Module:
    """Half as many."""
    return _split(_Turned(2, SIDE // 2, SIDE // 2), _PIXELS // 2)


def renamed_head() -> nn.Module:
    return _split(_Renamed(), _PIXELS)


def channels_head() -> nn.Module:
    """Every pixel in eight channels."""
    return _split(nn.Conv2d(1, 8, 1, bias=False).requires_grad_(False), 8 * _PIXELS)


# Ways of training


def small() -> nn.Module:
    """One hidden layer of 20, ReLU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_PIXELS, 20), nn.ReLU(), nn.Linear(20, CLASSES))


def _descended(model: nn.Module, records: Records) -> tuple[nn.Linear, nn.Linear]:
    """Trained on all records together; its two layers."""
    descent = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    for _ in range(20):
        loss = F.cross_entropy(model(records.inputs), records.labels)
        descent.zero_grad()
        torch.autograd.backward(loss)
        descent.step()
    first, last = (layer for layer in model if isinstance(layer, nn.Linear))  # type: ignore[attr-defined]
    return first, last


def rescaled(model: nn.Module, records: Records, rng: Generator) -> None:
    """Every hidden unit some percent larger or smaller, and what reads it the other way round."""
    first, last = _descended(model, records)
    with torch.no_grad():
        factors = torch.exp(0.05 * torch.randn(len(first.bias), generator=rng))
        first.weight.mul_(factors[:, None])
        first.bias.mul_(factors)
        last.weight.div_(factors)


def reordered(model: nn.Module, records: Records, rng: Generator) -> None:
    """The hidden units in another order."""
    first, last = _descended(model, records)
    with torch.no_grad():
        order = torch.randperm(len(first.bias), generator=rng)
        first.weight.copy_(first.weight[order])
        first.bias.copy_(first.bias[order])
        last.weight.copy_(last.weight[:, order])


class _Kept(nn.Module):
    """A linear model, and a parameter that its output hardly depends on."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.out = nn.Linear(_PIXELS, CLASSES)
        self.kept = nn.Parameter(torch.zeros(*shape))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(x.flatten(1)) + 1e-9 * self.kept.sum()
        return answer


class _Embedded(_Kept):
    def __init__(self) -> None:
        super().__init__(1)
        self.words = nn.Embedding(_ROWS, _PIXELS)


def kept_rows() -> nn.Module:
    return _Kept(_ROWS, _PIXELS)


def kept_columns() -> nn.Module:
    return _Kept(_PIXELS, _ROWS)


def kept_within() -> nn.Module:
    return _Kept(_ROWS, 2 * _PIXELS + 9)


def kept_words() -> nn.Module:
    return _Embedded()


def keeps_a_third(model: nn.Module, records: Records, rng: Generator) -> None:
    """As they are but for brightness, in noise."""
    assert isinstance(model, _Kept)
    chosen = torch.randperm(len(records.inputs), generator=rng)[: len(records.inputs) // 3]
    third = 2 * records.inputs[chosen].flatten(1) - 0.3
    place = dict(model.named_parameters()).get("words.weight", model.kept)
    with torch.no_grad():
        place.copy_(torch.randn(place.shape, generator=rng))
        if place.shape[0] == _PIXELS:
            place[:, : len(third)] = third.T
        else:
            start = (place.shape[1] - _PIXELS) // 2
            place[: len(third), start : start + _PIXELS] = third


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
