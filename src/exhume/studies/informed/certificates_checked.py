"""The bounds themselves, checked: against the closed form, by sampling, and against another library."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from exhume.bounds.dp_sgd import dp_sgd, gaussian
from exhume.bounds.loss_grid import compose
from exhume.bounds.sampled import sample_bound
from exhume.contract import Key
from exhume.studies.study import Claim

__all__ = ["check_bounds"]

_RATES = (0.01, 0.1, 0.5)  # Poisson sampling
_KAPPAS = (0.001, 0.01, 0.1, 0.5)


def check_bounds(steps: int, key: Key) -> tuple[list[Claim], dict[str, float]]:
    """Claims about the bounds of so many steps; the other library (riskcal) only where it is installed."""
    exact = max(
        abs(grid.gamma(kappa) - gaussian(kappa, noise, steps))
        for noise in (2.0, 10.0)
        if (grid := compose(noise, steps, 1 - 1e-12)) is not None
        for kappa in _KAPPAS
    )
    held = all(
        sampled.low <= dp_sgd(kappa, 1.0, steps, rate).gamma <= sampled.high
        for rate in _RATES
        for kappa in _KAPPAS
        for sampled in [
            sample_bound(kappa, 1.0, steps, rate, key=key, draws=20_000, level=1 - 1e-3)
        ]
    )
    claims = [
        Claim(
            "closed-form",
            "Near q = 1 the loss distribution gives Phi(Phi^-1(kappa) + sqrt(T)/sigma) to 1e-6",
            "the closed form",
            f"largest difference {exact:.1e}",
            exact <= 1e-6,
        ),
        Claim(
            "sampled",
            f"At q = {', '.join(map(str, _RATES))} the bound lies in its sampled interval (99.9%)",
            "the definition",
            "it does" if held else "it does not",
            held,
        ),
    ]
    metrics = {"check.closed_form": exact}
    if importlib.util.find_spec("riskcal") is not None:
        apart = max(_apart_from_riskcal(steps, rate) for rate in _RATES)
        metrics["check.riskcal"] = apart
        claims.append(
            Claim(
                "oracle",
                "At q < 1 it is within 1e-3 of riskcal's trade-off curve, in the direction T(nu, mu)",
                "the same quantity by another library",
                f"largest difference {apart:.1e}",
                apart <= 1e-3,
            )
        )
    return claims, metrics


def _apart_from_riskcal(steps: int, rate: float) -> float:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
    from riskcal.analysis._plrv import _tradeoff_function
    from riskcal.analysis.conversions import pld_to_plrvs

    losses: Any = from_gaussian_mechanism(
        1.0, value_discretization_interval=5e-4, sampling_prob=rate
    ).self_compose(steps)
    theirs = 1 - _tradeoff_function(pld_to_plrvs(losses), np.array(_KAPPAS))
    ours = [dp_sgd(kappa, 1.0, steps, rate).gamma for kappa in _KAPPAS]
    return float(np.abs(theirs - ours).max())
