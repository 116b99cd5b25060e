"""Stein moments T_1 ... T_4 of what a gradient says, contracted before they are formed.

    T_p = 1/m sum_j g_j He_p(w_j),     He_2(w) = w w^T - I,  He_3(w) = w^{(3)} - sym(w I), ...

The largest object is T_4 inside a span of B columns: memory O(dB + B^4) besides the weights, which are
read in blocks: products in the dtype of the weights, sums over blocks in that of g. Everything is linear
in g, so C outputs are C calls.

Shapes: m hidden neurons, d inputs, q columns of a basis.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["first", "inside", "second_on", "third_on", "zeroth"]

_BLOCK = 1 << 11


def _blocks(weights: Tensor, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(weights), _BLOCK):
        cut = slice(start, start + _BLOCK)
        yield weights[cut], values[cut].to(weights.dtype)


def zeroth(values: Tensor) -> Tensor:
    """() mean of g (m,)."""
    return values.mean()


def first(weights: Tensor, values: Tensor) -> Tensor:
    """(d,) T_1, from weights (m, d) and g (m,)."""
    total = torch.zeros(weights.shape[1], dtype=values.dtype)
    for w, g in _blocks(weights, values):
        total += g @ w
    return total / len(values)


def second_on(weights: Tensor, values: Tensor, basis: Tensor) -> Tensor:
    """(d, q) T_2 V for V (d, q)."""
    total = torch.zeros_like(basis)
    for w, g in _blocks(weights, values):
        total += w.T @ (g[:, None] * (w @ basis.to(w.dtype)))
    return total / len(values) - zeroth(values) * basis


def third_on(weights: Tensor, values: Tensor, basis: Tensor) -> Tensor:
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


def inside(points: Tensor, values: Tensor, order: int) -> Tensor:
    """(q,) * order: T_p(V, ..., V) from the points W V (m, q) of an orthonormal V and g (m,)."""
    q = points.shape[1]
    pairs_moment = points.new_zeros(q * q, q ** (order - 2))
    for p, g in _blocks(points, values):
        pairs = (p[:, :, None] * p[:, None, :]).flatten(1)
        right = g[:, None] * (
            p if order == 3 else pairs if order == 4 else torch.ones_like(p[:, :1])
        )
        pairs_moment += pairs.T @ right
    raw = pairs_moment.reshape((q,) * order) / len(values)
    return raw - _lower(points, values, order)


def _lower(points: Tensor, values: Tensor, order: int) -> Tensor:
    """What He_p has besides the p-th power: for p = 4, six w w I less three I I."""
    q = points.shape[1]
    eye = torch.eye(q, dtype=points.dtype)
    if order == 2:
        return zeroth(values) * eye
    if order == 3:
        one = first(points, values)
        return _outer(one, eye, ("a,bc->abc", "b,ac->abc", "c,ab->abc"))
    square = inside(points, values, 2) + zeroth(values) * eye
    six = ("ab,cd->abcd", "cd,ab->abcd", "ac,bd->abcd", "bd,ac->abcd", "ad,bc->abcd", "bc,ad->abcd")
    three = ("ab,cd->abcd", "ac,bd->abcd", "ad,bc->abcd")
    return _outer(square, eye, six) - zeroth(values) * _outer(eye, eye, three)


def _outer(left: Tensor, right: Tensor, rules: tuple[str, ...]) -> Tensor:
    total = torch.einsum(rules[0], left, right)
    for rule in rules[1:]:
        total = total + torch.einsum(rule, left, right)
    return total
