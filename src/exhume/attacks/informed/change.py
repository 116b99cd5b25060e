"""What the unknown record changed: released parameters minus a model trained without it.

The size of the change depends on how surprising the record was, its direction on what the record is,
so the label is read off directions here, the record in reading.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.contract import Layout

__all__ = ["decision_features"]


def decision_features(parameters: Tensor, base: Tensor, layout: Layout) -> Tensor:
    """(s, f): the direction of the change of the last layer and of every bias.

    The gradient of the last bias is softmax minus the label's one-hot vector, so this is where the
    label is written; the first layer's weights, where the record itself is, are left out.
    """
    parts = layout.split((parameters - base).double())
    matrices = [
        name for name, shape in zip(layout.names, layout.shapes, strict=True) if len(shape) > 1
    ]
    chosen = [
        part.reshape(len(part), -1)
        for (name, part), shape in zip(parts.items(), layout.shapes, strict=True)
        if name in matrices[-1:] or len(shape) <= 1
    ]
    return F.normalize(torch.cat(chosen, dim=1), dim=1)
