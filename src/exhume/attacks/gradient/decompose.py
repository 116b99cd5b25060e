"""Rank-one terms of a symmetric tensor: sum_i lambda_i u_i^{(p)}, p = 3 or 4, B terms in B variables.

The u_i are linearly independent and not orthogonal, the lambda_i have both signs: no whitening by a definite
matrix is to be had. Simultaneous eigenvectors of many contractions (Kuleshov et al. 2015, as Wang23 cites),
then alternating least squares on the tensor itself; several draws, the best fit kept. `refined` goes on from
the best draws with Levenberg-Marquardt on all factors:

    min_A || T - sum_i s_i a_i^{(p)} ||^2,     s_i = ±1 (p = 4; a sign is absorbed by a_i for p = 3)

The normal matrix has the closed form p s_i s_j [(a_i · a_j)^(p-1) I + (p-1) (a_i · a_j)^(p-2) a_j a_i^T]. A
step costs one contraction of T and a solve of B^2 unknowns. Alternating least squares with tied factors need
not decrease the misfit and can end beside its minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import Key
from exhume.train.least_squares import damped_step, least_norm

_DRAWS = 12  # of random contractions
_REFINED = 4  # best of them that are refined
_SWEEPS = 40  # of alternating least squares
_STEPS = 40  # of Levenberg-Marquardt
_STALLED = 1e-6  # relative gain of a step that counts as none


@dataclass(frozen=True, eq=False)
class Terms:
    directions: Tensor  # (b, q) unit rows
    weights: Tensor  # (b,) lambda; of several tensors (c, b)
    misfit: float  # norm of what is left, over the tensor's


def decompose(tensor: Tensor, *, refined: bool = False, key: Key) -> Terms:
    """Decompose into as many terms as there are variables. The sign of a direction is free for order 4."""
    starts = (_eigenvectors(tensor, key.fold("draw", i)) for i in range(_DRAWS))
    draws = [_fitted(tensor, _alternate(tensor, start)) for start in starts]
    draws.sort(key=lambda terms: terms.misfit)
    if refined:
        draws = [
            _fitted(tensor, _refined(tensor, terms.directions, terms.weights))
            for terms in draws[:_REFINED]
        ]
    return min(draws, key=lambda terms: terms.misfit)


def decompose_jointly(tensors: Tensor, *, key: Key) -> Terms:
    """(c, q, ..., q), the same directions in all: T_k = sum_i lambda_ki u_i^{(p)}.

    Alternating least squares: row i of every tensor's half step is a multiple of u_i, their common direction.
    """
    draws = []
    for i in range(_DRAWS):
        mix = torch.randn(
            len(tensors), dtype=tensors.dtype, generator=key.fold("mix", i).generator()
        )
        directions = _eigenvectors(torch.tensordot(mix, tensors, 1), key.fold("draw", i))
        for _ in range(_SWEEPS):
            directions = _half_step(tensors, directions)
        each = [_fitted(tensor, directions) for tensor in tensors]
        left = sum((t.misfit * float(x.norm())) ** 2 for t, x in zip(each, tensors, strict=True))
        misfit = (left / float(tensors.square().sum())) ** 0.5
        draws.append(Terms(directions, torch.stack([t.weights for t in each]), misfit))
    return min(draws, key=lambda terms: terms.misfit)


def _half_step(tensors: Tensor, directions: Tensor) -> Tensor:
    gram = (directions @ directions.T) ** (tensors.ndim - 2)
    rows = [least_norm(gram, _apply(tensor, directions)) for tensor in tensors]
    fresh: Tensor = torch.linalg.svd(torch.stack(rows, 1), full_matrices=False)[2][:, 0]
    return fresh


def _fitted(tensor: Tensor, directions: Tensor) -> Terms:
    """The weights by least squares: the Gram matrix of the rank-one tensors is (U U^T)^p."""
    p = tensor.ndim
    gram = (directions @ directions.T) ** p
    weights = least_norm(gram, _evaluate(tensor, directions)[:, None])[:, 0]
    left = tensor - _compose(weights, directions, p)
    return Terms(directions, weights, float(left.norm() / tensor.norm().clamp_min(1e-300)))


def _powers(vectors: Tensor, power: int) -> Tensor:
    """(v, q) to (v, q^power): the flattened rank-one tensors."""
    products = vectors.new_ones(len(vectors), 1)
    for _ in range(power):
        products = (products[:, :, None] * vectors[:, None, :]).flatten(1)
    return products


def _compose(weights: Tensor, directions: Tensor, p: int) -> Tensor:
    flat = (weights[:, None] * _powers(directions, 2)).T @ _powers(directions, p - 2)
    return flat.reshape((directions.shape[1],) * p)


def _contract(tensor: Tensor, vectors: Tensor) -> Tensor:
    """(v, q, q): T(., ., v) for p = 3, T(., ., v, v) for p = 4."""
    q, p = len(tensor), tensor.ndim
    return (_powers(vectors, p - 2) @ tensor.reshape(q * q, -1).T).reshape(-1, q, q)


def _apply(tensor: Tensor, directions: Tensor) -> Tensor:
    """(b, q): T(., u, u) or T(., u, u, u)."""
    return (_contract(tensor, directions) @ directions[:, :, None])[:, :, 0]


def _evaluate(tensor: Tensor, directions: Tensor) -> Tensor:
    return (_apply(tensor, directions) * directions).sum(1)


def _eigenvectors(tensor: Tensor, key: Key) -> Tensor:
    """U from A B^-1 = U D U^-1, A and B random contractions; a complex pair is split into its plane."""
    q = len(tensor)
    vectors = torch.randn(2, q, dtype=tensor.dtype, generator=key.generator())
    if tensor.ndim == 4:  # a mixture of squares, for contractions of both signs
        vectors = torch.randn(2 * q, q, dtype=tensor.dtype, generator=key.generator())
        signs = torch.randn(2, 2 * q, 1, 1, dtype=tensor.dtype, generator=key.fold(1).generator())
        top, bottom = (signs * _contract(tensor, vectors)).sum(1)
    else:
        top, bottom = _contract(tensor, vectors)
    _, columns = torch.linalg.eig(top @ torch.linalg.pinv(bottom))
    rows = torch.where(_lower_half(columns), columns.imag, columns.real).T
    return _unit(rows)


def _lower_half(columns: Tensor) -> Tensor:
    """(1, q): the second of each complex pair, whose real part would repeat the first's."""
    second = torch.zeros(columns.shape[1], dtype=torch.bool)
    i = 0
    while i < columns.shape[1]:
        if columns[:, i].imag.abs().max() > 1e-10 and i + 1 < columns.shape[1]:
            second[i + 1] = True
            i += 1
        i += 1
    return second[None]


def _alternate(tensor: Tensor, directions: Tensor) -> Tensor:
    """Alternating least squares with all factors tied after each half step."""
    p, size = tensor.ndim, float(tensor.norm())
    for _ in range(_SWEEPS):
        gram = (directions @ directions.T) ** (p - 1)
        image = _apply(tensor, directions)
        fresh = least_norm(gram, image)
        norms = fresh.norm(dim=1, keepdim=True)
        if not bool(torch.isfinite(fresh).all()) or float(norms.min()) < 1e-9 * size:
            break
        fresh = fresh / norms
        signs = (fresh * directions).sum(1, keepdim=True).sign()
        directions = fresh * torch.where(signs == 0, torch.ones_like(signs), signs)
    return directions


def _unit(rows: Tensor) -> Tensor:
    norms: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / norms.clamp_min(1e-12)


def _refined(tensor: Tensor, directions: Tensor, weights: Tensor) -> Tensor:
    """(b, q) unit rows near a start."""
    p, (b, q) = tensor.ndim, directions.shape
    signs = torch.where(weights < 0, -1.0, 1.0).to(tensor)
    factors = directions * (weights.abs() ** (1 / p))[:, None]
    if p % 2:
        factors, signs = factors * signs[:, None], torch.ones_like(signs)
    size = float(tensor.square().sum())

    def misfit(a: Tensor) -> float:
        square = (signs[:, None] * signs * (a @ a.T) ** p).sum()
        return size - 2 * float((signs * (_apply(tensor, a) * a).sum(1)).sum()) + float(square)

    here, damping = misfit(factors), 1e-3
    for _ in range(_STEPS):
        inner = factors @ factors.T
        both = signs[:, None] * signs
        slope = (both * inner ** (p - 1)) @ factors - signs[:, None] * _apply(tensor, factors)
        normal = torch.einsum("ij,cd->icjd", both * inner ** (p - 1), torch.eye(q).to(tensor))
        bend = (p - 1) * both * inner ** (p - 2)
        normal = normal + torch.einsum("ij,jc,id->icjd", bend, factors, factors)
        normal = normal.reshape(b * q, b * q)
        step = damped_step(
            normal,
            slope.flatten(),
            damping,
            lambda move: misfit(factors - move.reshape(b, q)),  # noqa: B023
            here,
        )
        if step is None:
            break
        move, there, damping = step
        gain, factors, here = here - there, factors - move.reshape(b, q), there
        if gain <= _STALLED * abs(here) or here <= 1e-14 * size:
            break
    return _unit(factors)
