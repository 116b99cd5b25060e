"""All records inside a span: moments, their decomposition, and the fit that polishes them.

A first decomposition starts from the moments alone. If the fit it leads to leaves something over, that
fit becomes a control variate: the moments of the remainder are regressed (their noise shrinks with the
remainder), the exact moments of the fit are added, and the sum is decomposed afresh.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.attacks.gradient.decompose import Terms, decompose
from exhume.attacks.gradient.gates import CERTAIN, Gates, Opened
from exhume.attacks.gradient.hermite import coefficients
from exhume.attacks.gradient.polish import Fit, best_strengths, polish
from exhume.attacks.gradient.regression import Samples, fit_moments
from exhume.contract import Key
from exhume.models.activations import Activation

__all__ = ["EXACT", "directions_of", "moment_of", "solve_gates", "solve_smooth"]

EXACT = 1e-4  # misfit below which a fit is the answer: rounding of fp32 leaves 1e-7 to 1e-6
_ROUNDS = 6
_ROWS = 1000  # of the neurons, used as equations: B^2 + B unknowns need B of them


def solve_smooth(
    activation: Activation, samples: Samples, order: int, norm: float, key: Key
) -> Fit:
    """The best fit found; its `misfit` says whether it is the answer."""
    few = samples.rows(slice(0, _ROWS))
    best: Fit | None = None
    for turn in range(_ROUNDS):
        moments = _moments(activation, samples, order, best)
        terms = decompose(moments[order], key=key.fold("turn", turn))
        start = norm * directions_of(activation, terms, moments[1], order)
        fit = polish(activation, few, start)
        if best is None or fit.misfit < best.misfit:
            best = fit
        if best.misfit < EXACT:
            break
    assert best is not None  # there is at least one turn
    return best


def solve_gates(activation: Activation, samples: Samples, order: int, key: Key) -> Opened:
    """For piecewise linear activations: the same turns, with gates in place of the fit."""
    gates, best = Gates(samples), None
    drop = float(gate_drop(activation))
    for turn in range(_ROUNDS):
        moments = _moments(activation, samples, order, best)
        terms = decompose(moments[order], key=key.fold("turn", turn))
        gates.look_near(directions_of(activation, terms, moments[1], order))
        opened = gates.opened(drop)
        if float(opened.spreads.max()) < CERTAIN:
            return opened
        strengths = best_strengths(activation, samples, opened.directions)
        best = Fit(opened.directions, strengths, 1.0)
    gates.draw(key)
    return gates.opened(drop)


def gate_drop(activation: Activation) -> float:
    """sigma' of an open gate less that of a closed one."""
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    closed, opened = activation.slope(ends, activation.apply(ends))
    return float(opened - closed)


def _moments(activation: Activation, samples: Samples, order: int, fit: Fit | None) -> list[Tensor]:
    if fit is None:
        return fit_moments(samples, order)
    z = samples.points @ fit.records.T
    height = activation.apply(z)
    slopes = samples.slopes
    if slopes is not None:
        slopes = slopes - (activation.slope(z, height) * fit.strengths) @ fit.records
    left = Samples(samples.points, samples.values - height @ fit.strengths, slopes)
    return [
        part + moment_of(activation, fit.records, fit.strengths, p)
        for p, part in enumerate(fit_moments(left, order))
    ]


def moment_of(activation: Activation, records: Tensor, strengths: Tensor, order: int) -> Tensor:
    """T_p = sum_i r_i c_p(|m_i|) (m_i / |m_i|)^{(p)}, exactly."""
    norms = records.norm(dim=1).clamp_min(1e-12)
    c = torch.tensor(
        [coefficients(activation, float(n))[order] for n in norms], dtype=records.dtype
    )
    units, weights = records / norms[:, None], strengths * c
    found = weights[:, None]
    for _ in range(order):
        found = (found[:, :, None] * units[:, None, :]).flatten(1)
    return found.sum(0).reshape((records.shape[1],) * order)


def directions_of(activation: Activation, terms: Terms, linear: Tensor, order: int) -> Tensor:
    """(b, q) with the sign of order 4 fixed by T_1 = sum_i r_i c_1 u_i.

    An odd activation leaves the sign free: (x, r) and (-x, -r) are the same function.
    """
    if order == 3:
        return terms.directions
    c = coefficients(activation)
    along = torch.linalg.lstsq(terms.directions.T, linear[:, None]).solution[:, 0]
    signs = torch.sign(along * terms.weights) * (1.0 if c[1] * c[order] > 0 else -1.0)
    return terms.directions * torch.where(signs == 0, torch.ones_like(signs), signs)[:, None]
