"""Records: what is private, what is held, what attacks bring back. Images, vectors or token sequences.

Shapes: n records; s models with e records each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Records", "Vocabulary"]


@dataclass(frozen=True)
class Vocabulary:
    """What the numbers of token sequences stand for."""

    words: tuple[str, ...] = ()  # by number; empty: not known
    padding: int | None = None  # fills a sequence up; no token of the text
    given: bool = (
        True  # False: the words were numbered here, so that no trained model knows the numbers
    )


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records. Images are float in [0, 1], channels first; vectors are one-dimensional.

    Token sequences are int64 (n, l) and have a vocabulary; nothing else has one.
    `inputs` may carry two leading axes (s, e) where a record set is given per model.
    """

    inputs: Tensor  # (n, *shape) or (s, e, *shape)
    labels: Tensor  # (n,) or (s, e), int64 in [0, len(classes))
    classes: tuple[str, ...]
    vocabulary: Vocabulary | None = None

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, index: slice | Tensor) -> Records:
        return Records(self.inputs[index], self.labels[index], self.classes, self.vocabulary)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.inputs.shape[self.labels.ndim :])

    def to(self, device: torch.device) -> Records:
        moved = self.inputs.to(device), self.labels.to(device)
        return Records(*moved, self.classes, self.vocabulary)

    def one_each(self) -> Records:
        """n sets of one record each: (n, *shape) becomes (n, 1, *shape)."""
        return Records(self.inputs[:, None], self.labels[:, None], self.classes)

    def with_extra(self, extra: Records, model: int) -> Records:
        """These and the extra records (s, e, *shape) of one model."""
        return Records(
            torch.cat([self.inputs, extra.inputs[model]]),
            torch.cat([self.labels, extra.labels[model]]),
            self.classes,
        )

    def none_for(self, models: int) -> Records:
        """An empty set for each of several models, of the same record shape."""
        return Records(
            self.inputs.new_zeros((models, 0, *self.shape)),
            self.labels.new_zeros((models, 0)),
            self.classes,
        )
