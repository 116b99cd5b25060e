"""Least squares with the same bits every time.

The default driver of `torch.linalg.lstsq` on the CPU (gelsy) gives other last bits from call to call, on the
same inputs; the one by singular values (gelsd) does not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def least_squares(matrix: Tensor, target: Tensor) -> Tensor:
    """(m, n), (m, k) to (n, k), of least norm where several fit."""
    solution: Tensor = torch.linalg.lstsq(matrix, target, driver="gelsd").solution
    return solution
