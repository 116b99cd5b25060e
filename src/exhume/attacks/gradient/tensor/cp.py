"""TensorLy's CP decomposition (alternating least squares with untied factors), the rival of our own.

It does not know that the tensor is symmetric, so the first of its factors is taken. NumPy backend: the
tensors have B^3 or B^4 numbers.
"""

from __future__ import annotations

import contextlib
import io
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key

__all__ = ["cp_directions", "have_tensorly"]

_STARTS = 12  # as many as the joint method has draws
_SWEEPS = 200  # untied factors converge slowly


def have_tensorly() -> bool:
    return find_spec("tensorly") is not None


def cp_directions(tensor: Tensor, key: Key) -> Tensor:
    """(q, q) unit rows, those of the start that fits best."""
    if not have_tensorly():
        raise ExhumeError("method: 'cp' needs TensorLy: pip install 'exhume[tensorly]'")
    parafac = import_module("tensorly.decomposition").parafac
    seeds = torch.randint(2**31, (_STARTS,), generator=key.generator()).tolist()
    best: tuple[float, Tensor] | None = None
    for seed in seeds:
        with contextlib.redirect_stdout(io.StringIO()):
            (_, factors), errors = parafac(
                tensor.numpy(),
                rank=len(tensor),
                n_iter_max=_SWEEPS,
                init="random",
                tol=1e-10,
                random_state=seed,
                return_errors=True,
            )
        rows = torch.from_numpy(factors[0]).T
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
        if best is None or errors[-1] < best[0]:
            best = float(errors[-1]), rows
    assert best is not None  # there is at least one start
    return best[1]
