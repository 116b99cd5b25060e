"""Rank-one terms of a symmetric tensor: sum_i lambda_i u_i^{(p)}, p = 3 or 4, B terms in B variables.

The u_i are linearly independent and not orthogonal, the lambda_i have both signs: no whitening by a
definite matrix is to be had. Five ways, compared in tests and in the study `gradient-tensor`:

- joint      simultaneous eigenvectors of many contractions (Kuleshov et al. 2015, as Wang23 cites), then
             alternating least squares on the tensor itself; several draws, the best fit kept
- newton     the same starts, then Levenberg-Marquardt on all factors (`newton.py`)
- jennrich   one pair of contractions, nothing after it
- power      whitening by |a contraction|, then power iterations with deflation
- cp         TensorLy's alternating least squares from random starts (extra `tensorly`)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.tensor.cp import cp_directions
from exhume.attacks.gradient.tensor.least_squares import least_squares
from exhume.attacks.gradient.tensor.newton import refine_terms
from exhume.core.contract import ExhumeError, Key

__all__ = ["METHODS", "Terms", "decompose", "decompose_jointly"]

METHODS = ("joint", "newton", "jennrich", "power", "cp")
_DRAWS = 12  # of random contractions, for "joint"
_REFINED = 4  # best of them that "newton" goes on with
_SWEEPS = 40  # of alternating least squares
_POWER_STARTS = 20
_POWER_STEPS = 60


@dataclass(frozen=True, eq=False)
class Terms:
    directions: Tensor  # (b, q) unit rows
    weights: Tensor  # (b,) lambda; of several tensors (c, b)
    misfit: float  # norm of what is left, over the tensor's


def decompose(tensor: Tensor, *, method: str = "joint", key: Key) -> Terms:
    """Decompose into as many terms as there are variables. The sign of a direction is free for order 4."""
    if method not in METHODS:
        raise ExhumeError(f"method: {method!r} is not one of {', '.join(METHODS)}")
    if method == "power":
        return _fitted(tensor, _power(tensor, key))
    if method == "cp":
        return _fitted(tensor, cp_directions(tensor, key))
    if method == "jennrich":
        return _fitted(tensor, _eigenvectors(tensor, key))
    starts = (_eigenvectors(tensor, key.fold("draw", i)) for i in range(_DRAWS))
    draws = [_fitted(tensor, _alternate(tensor, start)) for start in starts]
    draws.sort(key=lambda terms: terms.misfit)
    if method == "newton":
        draws = [
            _fitted(tensor, refine_terms(tensor, terms.directions, terms.weights, _apply))
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
    rows = [least_squares(gram, _apply(tensor, directions)) for tensor in tensors]
    fresh: Tensor = torch.linalg.svd(torch.stack(rows, 1), full_matrices=False)[2][:, 0]
    return fresh


def _fitted(tensor: Tensor, directions: Tensor) -> Terms:
    """The weights by least squares: the Gram matrix of the rank-one tensors is (U U^T)^p."""
    p = tensor.ndim
    gram = (directions @ directions.T) ** p
    weights = least_squares(gram, _evaluate(tensor, directions)[:, None])[:, 0]
    left = tensor - _compose(weights, directions, p)
    return Terms(directions, weights, float(left.norm() / tensor.norm().clamp_min(1e-300)))


def _powers(vectors: Tensor, power: int) -> Tensor:
    """(v, q) to (v, q^power): the flattened rank-one tensors."""
    found = vectors.new_ones(len(vectors), 1)
    for _ in range(power):
        found = (found[:, :, None] * vectors[:, None, :]).flatten(1)
    return found


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
        fresh = least_squares(gram, image)
        norms = fresh.norm(dim=1, keepdim=True)
        if not bool(torch.isfinite(fresh).all()) or float(norms.min()) < 1e-9 * size:
            break
        fresh = fresh / norms
        signs = (fresh * directions).sum(1, keepdim=True).sign()
        directions = fresh * torch.where(signs == 0, torch.ones_like(signs), signs)
    return directions


def _power(tensor: Tensor, key: Key) -> Tensor:
    """Whiten by a contraction, iterate u <- T(., u, ..), deflate; the textbook way."""
    p, q = tensor.ndim, len(tensor)
    generator = key.generator()
    vectors = torch.randn(1, q, dtype=tensor.dtype, generator=generator)
    metric = _contract(tensor, vectors)[0]
    eigenvalues, axes = torch.linalg.eigh(metric)
    size = eigenvalues.abs().clamp_min(1e-9 * float(eigenvalues.abs().max())).sqrt()
    whiten, restore = axes / size, axes * size  # (q, q)
    left = tensor
    for _ in range(p):  # one axis after the other, each moved to the end
        left = torch.tensordot(left, whiten, dims=([0], [0]))
    found = []
    for _ in range(q):
        starts = torch.randn(_POWER_STARTS, q, dtype=tensor.dtype, generator=generator)
        starts = starts / starts.norm(dim=1, keepdim=True)
        for _ in range(_POWER_STEPS):
            moved = _apply(left, starts)
            starts = moved / moved.norm(dim=1, keepdim=True).clamp_min(1e-300)
        sizes = _evaluate(left, starts)
        best = starts[int(sizes.abs().argmax())][None]
        left = left - _compose(_evaluate(left, best), best, p)
        found.append(best[0])
    rows = torch.stack(found) @ restore.T
    return _unit(rows)


def _unit(rows: Tensor) -> Tensor:
    norms: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / norms.clamp_min(1e-12)
