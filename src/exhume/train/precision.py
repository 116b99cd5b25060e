"""How finely numbers are known that may have passed through half precision."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["half_precision"]


def half_precision(values: Tensor) -> float | None:
    """Relative rounding of the half precision that holds all values exactly; None: neither does."""
    for kind in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(kind).to(values.dtype), values):
            return torch.finfo(kind).eps
    return None
