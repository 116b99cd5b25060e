"""One ridge regression per label, with what is common to all labels learned from all of them.

Shared by all labels: the principal components of the records about their label's mean, from every
record the adversary holds; for each component a penalty and a scale, chosen by leave-one-out error over
all shadows. Components in which records vary much are learned with a small penalty, the others shrunk.

For one label with kernel K = V diag(v) V^T and records' components Z (n, f), component j with its own
penalty lam_j:  A_j = (K + lam_j I)^-1 Z_j,  prediction at x: s_j k(x)^T A_j,
leave-one-out residual of row i: A_ij / ((K + lam_j I)^-1)_ii.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from exhume.attacks.informed.ridge import INTERCEPT, PENALTIES, left_out_variance, variance
from exhume.core.contract import Records

__all__ = ["Anchors", "Basis", "HeldRows", "Regression", "Sample", "basis_of", "regress"]

_SCALES = (0.0, 1.5)  # a component's scale is kept within


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
        own = records.labels == label
        rows[own] -= rows[own].mean(0)
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
        own = read.square().sum(1) + INTERCEPT
        found = (cross @ self.dual) @ self.basis.vectors.T + self.mean
        spread = variance(cross, own, self.inverse, self.penalty)
        usual = left_out_variance(self.inverse).mean()
        records = found.clamp(self.basis.low, self.basis.high)
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
        found = (guess * scale) @ self.basis.vectors.T + self.mean
        found = found.clamp(self.basis.low, self.basis.high)
        common = penalties[together]
        return Regression(
            anchors=self.sample.read,
            mean=self.mean,
            dual=dual * scale,
            basis=self.basis,
            inverse=(self.vectors / (self.values + common)) @ self.vectors.T,
            penalty=float(common),
            held_out_error=float((found - self.sample.records).square().mean()),
            held_out=found.float(),
        )
