"""What a reconstructor reads: released parameters, standardised by statistics of the training shadows.

"parameters" is Balle22's input: each parameter minus its mean over the training shadows, over its
standard deviation. "delta" (ours) first takes the change from the base model and divides it by its
length, which says how surprising the record was and nothing about what it is.

Parameters that no training shadow moves (weights from pixels that are always black) are left out:
standardised they are zero, so a network could not learn from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.contract import NotApplicable

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


def fit_features(
    kind: str, parameters: Tensor, base: Tensor, *, allowed: Tensor | None = None, span: bool
) -> Features:
    """parameters: (s, p) training shadows; allowed: (p,) bool, the parameters that may be read."""
    seen = _read(kind, parameters, base)
    spread, centre = torch.std_mean(seen, dim=0)
    keep = spread > _ROUNDING * centre.abs()
    if allowed is not None:
        keep &= allowed
    columns = keep.nonzero()[:, 0]
    if not len(columns):
        raise NotApplicable("shadow: no parameter differs between the shadow models", ever=True)
    plain = Features(kind, base, columns, centre[columns], spread[columns])
    if not span:
        return plain
    basis = _basis(plain.standardised(parameters))
    return Features(kind, base, columns, plain.centre, plain.scale, basis)


def refit_features(features: Features, parameters: Tensor, base: Tensor) -> Features:
    """These columns and basis with the statistics of other training shadows, (s, p), and their base.

    A column that does not move there reads as zero.
    """
    seen = _read(features.kind, parameters, base)[:, features.columns]
    spread, centre = torch.std_mean(seen, dim=0)
    still = spread <= _ROUNDING * centre.abs()
    return replace(features, base=base, centre=centre, scale=spread.masked_fill(still, math.inf))


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
