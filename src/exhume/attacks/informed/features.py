"""What a reconstructor reads: released parameters, standardised by statistics of the training shadows.

"parameters" is Balle22's input: each parameter minus its mean over the training shadows, over its
standard deviation. "delta" (ours) first takes the change from the base model and divides it by its
length, which says how surprising the record was and nothing about what it is.

Parameters that no training shadow moves (weights from pixels that are always black) are left out:
standardised they are zero, so a network could not learn from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.informed.memory import LIMITS, row_blocks
from exhume.core.contract import NotApplicable

__all__ = ["INPUTS", "Features", "fit_features", "refit_features"]

INPUTS = ("parameters", "delta")
_ROUNDING = 10 * torch.finfo(torch.float32).eps  # relative spread below which a number is constant
_RANK = 1e-5  # singular values below this share of the largest count as zero
_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Features:
    kind: str  # one of INPUTS
    base: Tensor  # (p,) the model trained without an unknown record
    columns: Tensor  # (f,) parameters read, increasing
    centre: Tensor  # (f,)
    scale: Tensor  # (f,)
    basis: Tensor | None = None  # (f, q) of the shadows' span

    @property
    def size(self) -> int:
        return len(self.columns) if self.basis is None else self.basis.shape[1]

    def standardised(self, parameters: Tensor) -> Tensor:
        """(r, p) to (r, f): before the projection onto the span."""
        seen = _read(self.kind, parameters, self.base)[:, self.columns]
        return seen.sub_(self.centre).div_(self.scale)

    def projected(self, standardised: Tensor) -> Tensor:
        """(r, f) to (r, q), or unchanged where there is no basis."""
        return standardised if self.basis is None else standardised @ self.basis

    def apply(self, parameters: Tensor) -> Tensor:
        """(r, p) to (r, size)."""
        return self.projected(self.standardised(parameters))

    def of_rows(self, parameters: Tensor, rows: Tensor) -> Tensor:
        """(s, p) and (r,) to (r, size): the same for these rows, in blocks."""
        found = [self.apply(block) for block in _blocks(parameters, rows)]
        return found[0] if len(found) == 1 else torch.cat(found)


def fit_features(
    kind: str,
    parameters: Tensor,
    base: Tensor,
    rows: Tensor,
    *,
    allowed: Tensor | None = None,
    span: bool,
) -> Features:
    """parameters: (s, p) shadows; rows: those to train on; allowed: (p,) bool, what may be read.

    span: of the first of these rows, `LIMITS.span` at most. They are drawn at random, so that more of them
    would add what few shadows have.
    """
    spread, centre = _moments(kind, parameters, base, rows)
    keep = spread > _ROUNDING * centre.abs()
    if allowed is not None:
        keep &= allowed
    columns = keep.nonzero()[:, 0]
    if not len(columns):
        raise NotApplicable("shadow: no parameter differs between the shadow models", ever=True)
    plain = Features(kind, base, columns, centre[columns], spread[columns])
    if not span:
        return plain
    basis = _basis(plain.of_rows(parameters, rows[: LIMITS.span]))
    return Features(kind, base, columns, plain.centre, plain.scale, basis)


def refit_features(features: Features, parameters: Tensor, base: Tensor, rows: Tensor) -> Features:
    """These columns and basis with the statistics of other training shadows, rows of (s, p), and their base.

    A column that does not move there reads as zero.
    """
    spread, centre = (
        found[features.columns] for found in _moments(features.kind, parameters, base, rows)
    )
    still = spread <= _ROUNDING * centre.abs()
    return replace(features, base=base, centre=centre, scale=spread.masked_fill(still, math.inf))


def _blocks(parameters: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Copies of these rows, some at a time."""
    for part in row_blocks(len(rows), parameters.shape[1], element=4):
        yield parameters[rows[part]]


def _moments(kind: str, parameters: Tensor, base: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation (p,) and mean (p,) of what is read off these rows, in blocks where they are many."""
    if 4 * len(rows) * parameters.shape[1] <= LIMITS.whole:
        return torch.std_mean(_read(kind, parameters[rows], base), dim=0)
    mean = torch.zeros_like(base, dtype=torch.float64)
    for block in _blocks(parameters, rows):
        mean += _read(kind, block, base).sum(0, dtype=torch.float64) / len(rows)
    square = torch.zeros_like(mean)
    for block in _blocks(parameters, rows):
        square += (_read(kind, block, base) - mean.to(base)).square().sum(0, dtype=torch.float64)
    return (square / (len(rows) - 1)).sqrt().to(base), mean.to(base)


def _read(kind: str, parameters: Tensor, base: Tensor) -> Tensor:
    return F.normalize(parameters - base, dim=1) if kind == "delta" else parameters


def _basis(rows: Tensor) -> Tensor:
    """(s, f) to (f, q): an orthonormal basis of the rows' span, times sqrt(q / f).

    The factor keeps the mean square of the features, and so the size of the first layer's outputs at
    the start, what it was. Within the span, a linear layer can do the same before and after.
    """
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for part in torch.split(rows, _AT_ONCE, dim=1):  # in fp64, a few columns at a time
        gram.addmm_(part.double(), part.T.double())
    values, vectors = torch.linalg.eigh(gram)
    kept = values > (_RANK**2) * values[-1]
    rotation: Tensor = (vectors[:, kept] / values[kept].sqrt()).to(rows.dtype)
    return (rows.T @ rotation).mul_(math.sqrt(int(kept.sum()) / rows.shape[1]))
