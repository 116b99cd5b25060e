"""Stein moments T_1, T_2 and T_3 of what a gradient says, contracted before they are formed.

    T_p = 1/m sum_j g_j He_p(w_j),     He_2(w) = w w^T - I,  He_3(w) = w^{(3)} - sym(w I), ...

The largest object is T_3(I, V, V) for a span V of B columns: memory O(dB^2) besides the weights, which are
read in blocks: products in the dtype of the weights, sums over blocks in that of g. Everything is linear
in g, so C outputs are C calls.

Shapes: m hidden neurons, d inputs, q columns of a basis.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from exhume.attacks.gradient.tensor.rows import BLOCK, Rows, blocks

__all__ = ["first", "second_on", "third_on"]


def _blocks(weights: Rows, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(blocks(weights), torch.split(values.to(weights.dtype), BLOCK), strict=True)


def first(weights: Rows, values: Tensor) -> Tensor:
    """(d,) T_1, from weights (m, d) and g (m,)."""
    total = torch.zeros(weights.shape[1], dtype=values.dtype)
    for w, g in _blocks(weights, values):
        total += g @ w
    return total / len(values)


def second_on(weights: Rows, values: Tensor, basis: Tensor) -> Tensor:
    """(d, q) T_2 V for V (d, q)."""
    total = torch.zeros_like(basis)
    for w, g in _blocks(weights, values):
        total += w.T @ (g[:, None] * (w @ basis.to(w.dtype)))
    return total / len(values) - values.mean() * basis


def third_on(weights: Rows, values: Tensor, basis: Tensor) -> Tensor:
    """(d, q, q) T_3(I, V, V) for an orthonormal V (d, q)."""
    d, q = basis.shape
    total = basis.new_zeros(d, q * q)
    for w, g in _blocks(weights, values):
        inner = w @ basis.to(w.dtype)
        total += w.T @ (g[:, None] * (inner[:, :, None] * inner[:, None, :]).flatten(1))
    found = total.reshape(d, q, q) / len(values)
    one = first(weights, values)
    inner_one = basis.T @ one
    eye = torch.eye(q, dtype=basis.dtype)
    found -= one[:, None, None] * eye
    found -= basis[:, :, None] * inner_one[None, None, :]
    found -= basis[:, None, :] * inner_one[None, :, None]
    return found
