"""What Stein's lemma leaves of an activation: its Hermite coefficients, and the order they allow.

    c_p(rho) = E[sigma(rho z) He_p(z)] = rho^p E[sigma^(p)(rho z)],   z ~ N(0, 1)       (Wang23)

multiplies the p-th power of a record's direction in the moment T_p, for a record of norm rho. Records
are identified one by one by an order of 3 or more only.
"""

from __future__ import annotations

import numpy as np
import torch

from exhume.core.contract import NotApplicable
from exhume.models.activations import Activation

__all__ = ["coefficients", "order_for"]

_PIECES = 64  # intervals of the quadrature: kinks fall on their borders, or hardly matter
_NODES = 32
_REACH = 12.0  # standard deviations
_SMALLEST = 1e-3  # of the largest coefficient: what is below cannot be told from rounding and noise


def coefficients(activation: Activation, norm: float = 1.0, highest: int = 4) -> tuple[float, ...]:
    """(c_0, ..., c_highest) by Gauss-Legendre quadrature in pieces."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    edges = np.linspace(-_REACH, _REACH, _PIECES + 1)
    half = (edges[1:] - edges[:-1]) / 2
    z = (half[:, None] * nodes + (edges[1:] + edges[:-1])[:, None] / 2).ravel()
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (half[:, None] * weights).ravel()
    values = activation.apply(torch.from_numpy(norm * z)).numpy() * density
    found, before, here = [], np.zeros_like(z), np.ones_like(z)
    for order in range(highest + 1):
        found.append(float(values @ here))
        before, here = here, z * here - order * before  # He_{n+1} = z He_n - n He_{n-1}
    return tuple(found)


def order_for(activation: Activation, norm: float = 1.0) -> int:
    """3 or 4: the lowest order whose moment identifies the records.

    Raises `NotApplicable`, naming what can be identified, if both vanish.
    """
    c = coefficients(activation, norm)
    bar = _SMALLEST * max(abs(value) for value in c)
    usable = [p for p in (3, 4) if abs(c[p]) > bar]
    if usable:
        # a higher order costs noise: take it only where its coefficient is clearly the larger one
        return usable[0]
    if abs(c[2]) > bar:
        raise NotApplicable(
            f"{activation.name}: the moments of order 3 and 4 vanish, so the gradient identifies "
            "the span of the records and no single record",
            ever=False,
        )
    raise NotApplicable(
        f"{activation.name}: only the moment of order 1 is left, so the gradient identifies one "
        "linear combination of the records and no single record",
        ever=False,
    )
