"""What records go through before they enter a network, and back: (x - mean) / std.

Both are part of what is released: without them the network is of no use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from exhume.attacks.margin.restarts import stretched
from exhume.core.contract import ExhumeError
from exhume.core.notation import BROKEN_ARRAYS

__all__ = ["CONTRAST", "Preprocessing", "preprocessing_given"]

CONTRAST = 0.25  # of an image's pixels about the mean image, as a root mean square
_LENGTH = 192.0  # squared, of a CIFAR image of that contrast


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """mean, std: (*shape) each; None: the adversary was not told, or nothing is divided by."""

    shape: tuple[int, ...]
    mean: Tensor | None = None
    std: Tensor | None = None
    spread: float = 1.0  # of vectors as they enter, about 0, as a root mean square
    contrast: float = CONTRAST  # of images about the middle, likewise

    @property
    def images(self) -> bool:
        return len(self.shape) == 3

    @property
    def noun(self) -> str:
        return "images" if self.images else "records"

    @property
    def middle(self) -> Tensor:
        """(*shape) what is subtracted; where nobody says it, half of an image's range and 0 of a vector."""
        if self.mean is not None:
            return self.mean
        return torch.full(self.shape, 0.5 if self.images else 0.0)

    @property
    def size(self) -> float:
        """Of a record as it enters, as a root mean square; about 0."""
        if not self.images:
            return self.spread
        return self.contrast if self.std is None else self.contrast / float(self.std.mean())

    @property
    def centre(self) -> Tensor | None:
        """(*shape) what an attack adds to the inputs it finds; None: not known."""
        if not self.images:
            return torch.zeros(self.shape)  # they are brought back by `records`
        return self.mean if self.std is None or self.mean is None else self.mean / self.std

    def scaled_by(self, others: Tensor) -> Preprocessing:
        """With the spread of other records (n, *shape) of the kind, which nobody keeps secret."""
        entering = self.entering(others).double()
        return replace(self, spread=float(entering.square().mean().sqrt().clamp_min(1e-12)))

    def for_control(self) -> Preprocessing:
        """That of a network trained here: no mean, and records as long as those of small colour images."""
        wanted = math.sqrt(_LENGTH / math.prod(self.shape))
        plain = replace(self, mean=torch.zeros(self.shape))
        if self.images and self.std is None:
            return plain
        std = torch.ones(self.shape) if self.std is None else self.std
        return replace(plain, std=std * (self.size / wanted), spread=wanted)

    def in_the_network(self) -> tuple[Preprocessing, Tensor | None, Tensor | None]:
        """Another one, for images about their middle, and the (shift, scale) of a network that does the rest.

        An attack that seeks whole images does so about the mean; one of 0 says nothing of where they lie.
        """
        if self.mean is None or bool(self.mean.any()):
            return replace(self, std=None), None, self.std
        grey = torch.full(self.shape, 0.5)
        return replace(self, mean=grey, std=None, contrast=2 * CONTRAST), grey, self.std

    def entering(self, inputs: Tensor) -> Tensor:
        """(n, *shape) records as the network takes them."""
        less = inputs - self.middle
        return less if self.std is None else less / self.std

    def records(self, candidates: Tensor) -> Tensor:
        """(k, *shape) what an attack that adds `centre` found, as records.

        An attack stretches images to their full range, so only what differs between pixels is divided by
        is undone.
        """
        if not self.images:
            return candidates * (1.0 if self.std is None else self.std) + self.middle
        if self.std is None:
            return candidates.clamp(0, 1)
        return stretched(candidates * (self.std / self.std.mean()))


def preprocessing_given(mean: str, std: str, shape: tuple[int, ...]) -> Preprocessing:
    """As the settings name it: numbers, or .npz files."""
    given = _values(mean, "mean", shape), _values(std, "std", shape)
    if len(shape) == 3 and given[0] is not None and float(given[0].abs().max()) > 1:
        raise ExhumeError(f"--mean: {mean} has values beyond [-1, 1]; images lie in [0, 1]")
    if given[1] is not None and float(given[1].min()) <= 0:
        raise ExhumeError(
            f"--std: {std} has values that are not above 0, which nothing is divided by"
        )
    return Preprocessing(shape, *given)


def _values(text: str, name: str, shape: tuple[int, ...]) -> Tensor | None:
    """(*shape) from numbers, or an .npz file with an array of that name; None: not given."""
    if not text:
        return None
    values = _numbers(text, name) if not text.endswith(".npz") else _from_file(Path(text), name)
    if not bool(torch.isfinite(values).all()):
        raise ExhumeError(f"--{name}: {text} holds NaN or infinite values")
    if tuple(values.shape) == shape:
        return values
    if values.numel() == 1:
        return values.reshape(()).expand(shape).clone()
    if values.ndim == 1 and len(values) == shape[0]:
        return values.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).clone()
    if values.numel() == torch.Size(shape).numel():
        return values.reshape(shape)
    raise ExhumeError(f"--{name}: shape {tuple(values.shape)} given, records have {shape}")


def _numbers(text: str, name: str) -> Tensor:
    try:
        return torch.tensor([float(part) for part in text.split(",")])
    except ValueError:
        raise ExhumeError(
            f"--{name}: {text!r} is neither numbers such as 0.49,0.48,0.45 nor an .npz file"
        ) from None


def _from_file(path: Path, name: str) -> Tensor:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = list(file.files)
            chosen = name if name in names else names[0] if len(names) == 1 else None
            if chosen is None:
                raise ExhumeError(
                    f"--{name}: {path} holds {', '.join(names)}; an array {name} is needed"
                )
            found = file[chosen]
    except BROKEN_ARRAYS as error:
        raise ExhumeError(f"--{name}: cannot read {path} ({str(error)[:300]})") from error
    if not isinstance(found, np.ndarray):
        raise ExhumeError(f"--{name}: {path} holds no array of numbers")
    if found.dtype.kind not in "fiu":
        raise ExhumeError(f"--{name}: {path} holds {found.dtype}, numbers are needed")
    return torch.from_numpy(found.astype(np.float32))
