"""kappa of continuous priors: the largest mass of a ball of mean squared error eta, or a sound bound on it.

A ball of mean squared error eta in d dimensions has radius r = sqrt(eta d). For a density that is symmetric
about a centre and falls away from it (Gaussian, uniform on a cube), no ball has more mass than the one
around that centre (Anderson 1955), so the supremum over all answers is one probability. It is computed
exactly for an isotropic Gaussian, and by Chernoff's bound P[X <= x] <= min_t e^(t x) E e^(-t X) otherwise.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erf, gammaln
from scipy.stats import chi2
from torch import Tensor

from exhume.core.contract import ExhumeError

__all__ = ["kappa_of_density", "kappa_of_gaussian", "kappa_of_uniform"]

_TILTS = np.geomspace(1e-4, 1e8, 2401)  # times one over the prior's variance; any of them is sound


def kappa_of_gaussian(eta: float, deviations: Tensor) -> float:
    """A Gaussian whose principal axes have the given (d,) standard deviations; exact if these are equal.

    Besides Chernoff's bound: the j widest axes alone, each taken as narrow as the narrowest of them.
    """
    _check(eta, len(deviations))
    spread = np.sort(deviations.double().cpu().numpy())[::-1]
    if not spread[-1] >= 0 or not spread[0] > 0:
        raise ExhumeError("deviations: 0 or more each needed, and one above 0")
    reach = eta * len(spread)  # r^2
    kept = spread[spread > 0]
    axes = float(np.min(chi2.cdf(reach / kept**2, np.arange(1, len(kept) + 1))))
    tilts = _TILTS[:, None] / kept[0] ** 2
    moments = -0.5 * np.log1p(2 * tilts * kept**2).sum(1)  # of e^(-t X)
    return min(axes, _chernoff(tilts[:, 0] * reach + moments))


def kappa_of_uniform(eta: float, dimensions: int, width: float = 1.0) -> float:
    """Uniform on a cube: the ball's share of the volume, or Chernoff's bound, whichever is smaller."""
    _check(eta, dimensions)
    if not width > 0:
        raise ExhumeError(f"width: {width} given, a number above 0 is needed")
    scaled = eta / width**2  # on the unit cube
    roots = np.sqrt(12 * _TILTS)
    moments = np.log(np.sqrt(np.pi) / roots * erf(roots / 2))  # of e^(-t u^2), u in [-1/2, 1/2]
    chernoff = _chernoff(dimensions * (12 * _TILTS * scaled + moments))
    return min(chernoff, kappa_of_density(scaled, dimensions, 0.0))


def kappa_of_density(eta: float, dimensions: int, log_density: float) -> float:
    """Any prior whose density nowhere exceeds e^log_density: that times the volume of the ball."""
    _check(eta, dimensions)
    if eta == 0:
        return 0.0
    half = dimensions / 2
    volume = half * math.log(math.pi * eta * dimensions) - float(gammaln(half + 1))
    return math.exp(min(0.0, log_density + volume))


def _chernoff(exponents: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return math.exp(min(0.0, float(np.min(exponents))))


def _check(eta: float, dimensions: int) -> None:
    if not eta >= 0:
        raise ExhumeError(f"eta: {eta} given, a squared error of 0 or more needed")
    if dimensions < 1:
        raise ExhumeError(f"dimensions: {dimensions} given, at least 1 needed")
