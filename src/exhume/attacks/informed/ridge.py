"""Kernel ridge regression with its leave-one-out error in closed form: pure functions, fp64.

For targets Y (n, q), a kernel K (n, n) and a penalty lam, with C = (K + lam I)^-1 and A = C Y:
prediction at x: k(x)^T A;  leave-one-out residual of row i: A_i / C_ii.
One eigendecomposition serves every penalty.

`regress` fits one such regression per label, with what is common to all labels learned from all of them: the
principal components of the records about their label's mean, from every record the adversary holds; for each
component j a penalty lam_j and a scale s_j, chosen by leave-one-out error over all shadows. Components in
which records vary much are learned with a small penalty, the others shrunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.core.contract import Records

PENALTIES = tuple(10.0 ** (exponent / 2) for exponent in range(-14, 3))
"""Times the kernel's mean eigenvalue: from almost interpolation to almost the mean."""
INTERCEPT = 10.0
"""Added to the linear kernel of unit vectors: an intercept that is hardly penalised."""
_SCALES = (0.0, 1.5)  # a component's scale is kept within


def variance(cross: Tensor, own: Tensor, inverse: Tensor, penalty: float) -> Tensor:
    """(m,) predictive variance in units of the penalty: cross (m, n), own (m,), inverse C (n, n)."""
    return (own - ((cross @ inverse) * cross).sum(1)).clamp_min(0) + penalty


def left_out_variance(inverse: Tensor) -> Tensor:
    """(n,) the same for the fitted points, each left out: 1 / C_ii."""
    return 1 / inverse.diagonal()


@dataclass(frozen=True, eq=False)
class Ridge:
    dual: Tensor  # (n, q): A
    inverse: Tensor  # (n, n): C, for the predictive variance
    penalty: float
    held_out: Tensor  # (n, q) leave-one-out predictions

    def predict(self, cross: Tensor) -> Tensor:
        """cross: (m, n) kernel between new points and the fitted ones; returns (m, q)."""
        return cross @ self.dual


def fit_ridge(kernel: Tensor, targets: Tensor, loss: Callable[[Tensor], float]) -> Ridge:
    """Choose the penalty by the loss of the leave-one-out predictions (n, q), smallest wins."""
    values, vectors = torch.linalg.eigh(kernel)
    values = values.clamp_min(0)
    rotated = vectors.T @ targets
    squared = vectors.square()
    best: tuple[float, float, Tensor, Tensor] | None = None
    for factor in PENALTIES:
        penalty = factor * max(float(values.mean()), torch.finfo(kernel.dtype).tiny)
        inverse = 1 / (values + penalty)
        dual = vectors @ (rotated * inverse[:, None])
        held_out = targets - dual / (squared @ inverse)[:, None]
        error = loss(held_out)
        if best is None or error < best[0]:
            best = (error, penalty, dual, held_out)
    assert best is not None  # PENALTIES is not empty
    _, penalty, dual, held_out = best
    inverse_matrix = (vectors / (values + penalty)) @ vectors.T
    return Ridge(dual, inverse_matrix, penalty, held_out)


def gaussian_kernel(left: Tensor, right: Tensor, width: float) -> Tensor:
    """exp(-|a - b|^2 / width): (m, f), (n, f) to (m, n)."""
    squared = (
        left.square().sum(1)[:, None] + right.square().sum(1)[None] - 2 * left @ right.T
    ).clamp_min_(0)
    return squared.div_(-width).exp_()


@dataclass(frozen=True, eq=False)
class Mapping:
    """A map from directions to records, with their expected errors."""

    anchors: Tensor  # (n, p) directions it was fitted on, fp64
    mean: Tensor  # (q,)
    ridge: Ridge
    low: float
    high: float
    held_out_error: float  # mean squared leave-one-out error per value

    def apply(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """(m, p) to records (m, q) and their expected squared errors (m,)."""
        cross = directions @ self.anchors.T + INTERCEPT
        norms = directions.square().sum(1) + INTERCEPT
        records = (self.ridge.predict(cross) + self.mean).clamp(self.low, self.high)
        spread = variance(cross, norms, self.ridge.inverse, self.ridge.penalty)
        return records, self.held_out_error * spread / left_out_variance(self.ridge.inverse).mean()


def fit_mapping(
    directions: Tensor, records: Tensor, *, low: float, high: float, judged: int | None = None
) -> Mapping:
    """directions: (n, p) and records: (n, q) in fp64, the latter within low and high.

    The penalty is chosen by the leave-one-out error of the first `judged` rows; None: of all.
    """
    mean = records.mean(0)

    def error(held_out: Tensor) -> float:
        drawn = (held_out[:judged] + mean).clamp(low, high)
        return float((drawn - records[:judged]).square().mean())

    ridge = fit_ridge(directions @ directions.T + INTERCEPT, records - mean, error)
    return Mapping(directions, mean, ridge, low, high, error(ridge.held_out))


@dataclass(frozen=True, eq=False)
class Basis:
    """Principal components of records about their label's mean."""

    vectors: Tensor  # (q, f), orthonormal columns, fp64
    low: float  # range of the records' values
    high: float


def basis_of(records: Records) -> Basis:
    """records: (n, *shape), all that are held. At most n components."""
    rows = records.inputs.flatten(1).double()
    for label in torch.unique(records.labels).tolist():
        members = records.labels == label
        rows[members] -= rows[members].mean(0)
    if rows.shape[0] < rows.shape[1]:
        values, vectors = torch.linalg.eigh(rows @ rows.T)
        kept = values > 1e-12 * values[-1].clamp_min(1e-300)
        vectors = rows.T @ (vectors[:, kept] / values[kept].sqrt())
    else:
        values, vectors = torch.linalg.eigh(rows.T @ rows)
    return Basis(vectors, float(records.inputs.min()), float(records.inputs.max()))


@runtime_checkable
class Anchors(Protocol):
    """(n, p) numbers in fp64, about unit size, read off one label's shadows; perhaps never held at once."""

    def gram(self) -> Tensor: ...  # (n, n)
    def cross(self, read: Tensor) -> Tensor: ...  # (m, p) to (m, n)


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Anchors in memory."""

    read: Tensor  # (n, p)

    def gram(self) -> Tensor:
        return self.read @ self.read.T

    def cross(self, read: Tensor) -> Tensor:
        return read @ self.read.T


@dataclass(frozen=True, eq=False)
class Sample:
    """One label's shadows: what is read off them, and their records."""

    read: Anchors
    records: Tensor  # (n, q)


@dataclass(frozen=True, eq=False)
class Regression:
    """One label's map from what is read to the record."""

    anchors: Anchors
    mean: Tensor  # (q,)
    dual: Tensor  # (n, f): s_j A_j
    basis: Basis
    inverse: Tensor  # (n, n) with the penalty that is best for all components together
    penalty: float
    held_out_error: float  # mean squared leave-one-out error per value
    held_out: Tensor  # (n, q) what it draws of each shadow with that one left out, fp32

    def apply(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """(m, p) to records (m, q) and their expected squared errors (m,)."""
        cross = self.anchors.cross(read) + INTERCEPT
        norms = read.square().sum(1) + INTERCEPT
        drawn = (cross @ self.dual) @ self.basis.vectors.T + self.mean
        spread = variance(cross, norms, self.inverse, self.penalty)
        usual = left_out_variance(self.inverse).mean()
        records = drawn.clamp(self.basis.low, self.basis.high)
        return records, self.held_out_error * spread / usual


def regress(samples: dict[int, Sample], basis: Basis) -> tuple[dict[int, Regression], float]:
    """Fit every label's regression; also the mean squared leave-one-out error of all shadows."""
    solved: dict[int, _Solved] = {}
    sums = basis.vectors.new_zeros(3, len(PENALTIES), basis.vectors.shape[1])
    for label, sample in samples.items():
        solved[label] = _Solved.of(sample, basis)
        sums += solved[label].path()
    error, product, square = sums
    picked = error.argmin(0)  # (f,) which penalty each component takes
    here = torch.arange(len(picked), device=picked.device)
    scale = product[picked, here] / square[picked, here].clamp_min(1e-300)
    together = int(error.sum(1).argmin())
    fitted = {  # what is fitted takes the place of what was solved
        label: solved.pop(label).fit(picked, scale.clamp(*_SCALES), together) for label in samples
    }
    sizes = {label: len(sample.records) for label, sample in samples.items()}
    total = sum(one.held_out_error * sizes[label] for label, one in fitted.items())
    return fitted, total / sum(sizes.values())


@dataclass(frozen=True, eq=False)
class _Solved:
    """One label's kernel, decomposed: every penalty is then a multiplication."""

    sample: Sample
    basis: Basis
    mean: Tensor
    values: Tensor  # (n,)
    vectors: Tensor  # (n, n)

    @staticmethod
    def of(sample: Sample, basis: Basis) -> _Solved:
        values, vectors = torch.linalg.eigh(sample.read.gram() + INTERCEPT)
        mean = sample.records.double().mean(0)
        return _Solved(sample, basis, mean, values.clamp_min(0), vectors)

    def components(self) -> Tensor:
        """(n, f): Z."""
        return (self.sample.records.double() - self.mean) @ self.basis.vectors

    def penalties(self) -> Tensor:
        typical = self.values.mean().clamp_min(torch.finfo(self.values.dtype).tiny)
        return self.values.new_tensor(PENALTIES) * typical

    def path(self) -> Tensor:
        """(3, l, f): sums over the shadows, for every penalty and component, of the leave-one-out
        prediction's squared error, its product with the truth, and its square.
        """
        components = self.components()
        rotated = self.vectors.T @ components
        weights = self.vectors.square()
        sums = []
        for penalty in self.penalties():
            inverse = 1 / (self.values + penalty)
            dual = self.vectors @ (rotated * inverse[:, None])
            residual = dual / (weights @ inverse)[:, None]
            guess = components - residual
            terms = (residual.square(), guess * components, guess.square())
            sums.append(torch.stack([term.sum(0) for term in terms]))
        return torch.stack(sums, dim=1)

    def fit(self, picked: Tensor, scale: Tensor, together: int) -> Regression:
        penalties, components = self.penalties(), self.components()
        inverse = 1 / (self.values[:, None] + penalties[picked])  # (n, f)
        dual = self.vectors @ ((self.vectors.T @ components) * inverse)
        guess = components - dual / (self.vectors.square() @ inverse)
        drawn = (guess * scale) @ self.basis.vectors.T + self.mean
        drawn = drawn.clamp(self.basis.low, self.basis.high)
        common = penalties[together]
        return Regression(
            anchors=self.sample.read,
            mean=self.mean,
            dual=dual * scale,
            basis=self.basis,
            inverse=(self.vectors / (self.values + common)) @ self.vectors.T,
            penalty=float(common),
            held_out_error=float((drawn - self.sample.records).square().mean()),
            held_out=drawn.float(),
        )
