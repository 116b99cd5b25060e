"""Images as their files hold them, before they become float records."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Records
from exhume.data.cache import Content

__all__ = ["Pixels"]


@dataclass(frozen=True, eq=False)
class Pixels:
    """n images of whole numbers: a quarter of the memory and disk of their records."""

    values: Tensor  # (n, c, h, w) uint8, from 0 to `white`
    labels: Tensor  # (n,) int64
    classes: tuple[str, ...]
    white: int = 255

    def records(self) -> Records:
        inputs = self.values.to(torch.float32).div_(self.white)
        return Records(inputs, self.labels, self.classes)

    def content(self) -> Content:
        return Content(
            {"values": self.values, "labels": self.labels},
            {"classes": json.dumps(self.classes), "white": str(self.white)},
        )

    @staticmethod
    def of(content: Content) -> Pixels:
        """The inverse of `content`."""
        classes = tuple(json.loads(content.about["classes"]))
        white = int(content.about["white"])
        return Pixels(content.tensors["values"], content.tensors["labels"], classes, white)
