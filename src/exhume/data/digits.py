"""The 1797 handwritten digits of 8x8 that come with scikit-learn: no download at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from exhume.data.download import Unreachable
from exhume.data.pixels import Pixels

__all__ = ["from_sklearn"]


def from_sklearn(_: Path) -> Pixels:
    """(1797, 1, 8, 8), grey levels 0 to 16."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise Unreachable("scikit-learn is not installed") from error
    found = load_digits()
    values = torch.from_numpy(found.images.astype(np.uint8)[:, None])
    labels = torch.from_numpy(found.target.astype(np.int64))
    return Pixels(values, labels, tuple(str(digit) for digit in range(10)), white=16)
