"""Tokens behind vectors: place by place, from a sum, or by what lies in a span."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from scipy.optimize import nnls
from torch import Tensor

__all__ = ["counted", "in_place", "in_span"]

_ROUNDING = 100  # machine epsilons, over the largest singular value: what lies below is rounding


def in_place(features: Tensor, table: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """(b, l·e) to (b, l) nearest tokens, and (b,) the largest relative distance among the places."""
    width = table.shape[1]
    vectors = features.reshape(len(features), features.shape[1] // width, width)
    apart, index = torch.cdist(vectors, table[allowed].expand(len(vectors), -1, -1)).min(2)
    size = table.norm(dim=1).mean()
    return allowed[index], apart.amax(1) / size


def counted(sums: Tensor, table: Tensor, allowed: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(b, e) sums of embeddings to (b, l) sorted tokens and the relative misfit (b,).

    min_n || E^T n - sum ||, n >= 0, with sum_v n_v = l as one more equation: with so few tokens the
    solution is sparse by itself, and whole.
    """
    tokens = torch.zeros(len(sums), length, dtype=torch.int64)
    misfit = torch.ones(len(sums), dtype=torch.float64)
    vectors = table[allowed]
    equations = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], 1).T.numpy()
    for row, wanted in enumerate(sums):
        target = torch.cat([wanted, wanted.new_tensor([float(length)])])
        try:
            counts = torch.from_numpy(nnls(equations, target.numpy())[0]).round().long()
        except RuntimeError:  # not within its iterations: the vector is no sum of tokens
            continue
        if int(counts.sum()) == length:
            tokens[row] = allowed.repeat_interleave(counts).sort().values
            misfit[row] = (table[tokens[row]].sum(0) - wanted).norm() / wanted.norm()
    return tokens, misfit


def in_span(
    slopes: Sequence[Tensor], vectors: Tensor, allowed: Tensor, tolerance: float
) -> tuple[list[list[int]], list[float]]:
    """(m, e) gradients, (l, a, e) vectors of tokens (a,): those in the rows for each place, and the worst."""
    doubled = [slope.double() for slope in slopes]
    rows = torch.cat([slope / slope.norm().clamp_min(1e-300) for slope in doubled])
    _, sizes, right = torch.linalg.svd(rows)
    rank = int((sizes > _ROUNDING * torch.finfo(slopes[0].dtype).eps * sizes[0]).sum())
    outside = right[rank:]  # (e - rank, e): orthogonal to the batch's vectors; empty: anything goes
    off = (vectors.double() @ outside.T).norm(dim=2) / vectors.norm(dim=2)
    inside = off < tolerance
    found = [allowed[row].tolist() for row in inside]
    worst = [
        float(row[keep].max()) if bool(keep.any()) else math.inf
        for row, keep in zip(off, inside, strict=True)
    ]
    return found, worst
