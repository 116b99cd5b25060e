"""Reconstruction robustness from a privacy guarantee alone (Balle22; Hayes et al. 2023).

A mechanism is (eta, gamma)-robust if for every D- and every attack R

    P[l(z, R(M(D- + z))) <= eta] <= gamma,    z ~ prior

Let nu be what M releases without the record. Without seeing the release, an attack succeeds with at most
kappa = sup_z0 P[l(z, z0) <= eta] (prior.py, continuous.py). The release lifts the chance of an event from
kappa to at most gamma, by the guarantee's limit on how far M(D- + z) may be from nu. Adjacency is add /
remove one record throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from exhume.core.contract import ExhumeError

__all__ = ["approximate_dp", "check_kappa", "pure_dp", "rdp", "zcdp"]


def pure_dp(kappa: float, epsilon: float) -> float:
    """gamma = kappa e^epsilon, at most 1."""
    return approximate_dp(kappa, epsilon, 0.0)


def approximate_dp(kappa: float, epsilon: float, delta: float) -> float:
    """gamma = kappa e^epsilon + delta, at most 1."""
    check_kappa(kappa)
    _check_not_negative("epsilon", epsilon)
    if not 0 <= delta <= 1:
        raise ExhumeError(f"delta: {delta} given, needed from 0 to 1")
    if kappa == 0:
        return delta
    return min(1.0, math.exp(min(0.0, math.log(kappa) + epsilon)) + delta)


def rdp(kappa: float, curve: Mapping[float, float]) -> float:
    """gamma = min over orders a of (kappa e^eps_a)^((a - 1)/a), at most 1.

    curve: Rényi's divergence eps_a of the mechanism, by its order a > 1; every order gives a bound.
    """
    check_kappa(kappa)
    if not curve:
        raise ExhumeError("curve: no order given, at least one is needed")
    for order, epsilon in curve.items():
        if not 1 < order < math.inf:
            raise ExhumeError(f"order: {order} given, a finite number above 1 is needed")
        _check_not_negative("epsilon", epsilon)
    if kappa == 0:
        return 0.0
    exponents = ((a - 1) / a * (math.log(kappa) + epsilon) for a, epsilon in curve.items())
    return max(kappa, math.exp(min(0.0, *exponents)))


def zcdp(kappa: float, rho: float) -> float:
    """gamma = exp(-(sqrt(ln 1/kappa) - sqrt(rho))^2) for rho < ln 1/kappa, else 1.

    What `rdp` gives for eps_a = rho·a at the best order.
    """
    check_kappa(kappa)
    _check_not_negative("rho", rho)
    if kappa == 0:
        return 0.0 if rho < math.inf else 1.0
    needed = -math.log(kappa)
    if rho >= needed:
        return 1.0
    return math.exp(-((math.sqrt(needed) - math.sqrt(rho)) ** 2))


def check_kappa(kappa: float) -> None:
    if not 0 <= kappa <= 1:
        raise ExhumeError(f"kappa: {kappa} given, a probability from 0 to 1 is needed")


def _check_not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ExhumeError(f"{name}: {value} given, 0 or more needed")
