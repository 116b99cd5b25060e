"""All records inside a span: moments, their decomposition, and the fit that polishes them.

A first decomposition starts from the moments alone. If the fit it leads to leaves something over, that
fit becomes a control variate: the moments of the remainder are regressed (their noise shrinks with the
remainder), the exact moments of the fit are added, and the sum is decomposed afresh.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exhume.attacks.gradient.span.gates import Gates, Opened
from exhume.attacks.gradient.span.polish import Fit, best_strengths, polish
from exhume.attacks.gradient.span.regression import Samples, fit_moments
from exhume.attacks.gradient.tensor.decompose import Terms, decompose
from exhume.attacks.gradient.tensor.hermite import coefficients
from exhume.attacks.gradient.tensor.least_squares import least_squares
from exhume.core.contract import Key
from exhume.models.activations import Activation

__all__ = ["EXACT", "directions_of", "moment_of", "solve_gates", "solve_smooth"]

EXACT = 1e-4  # misfit below which a fit is the answer: rounding of fp32 leaves 1e-7 to 1e-6
_ROUNDS = 6
_LARGEST = 40  # records for which moments of order 4 are formed: B^4 numbers
_SIGNS = 16  # records whose signs are all tried
_NO_SECOND = 1e-6  # c_2 of an odd activation, up to quadrature
_FEWEST, _EACH = 320, 20  # neurons used as equations, at least and a record, of B^2 + B unknowns


def solve_smooth(
    activation: Activation, samples: Samples, order: int, norm: float, key: Key
) -> Fit:
    """The best fit found; its `misfit` says whether it is the answer."""
    few = samples.rows(slice(0, max(_FEWEST, _EACH * samples.points.shape[1])))
    best: Fit | None = None
    for turn in range(_ROUNDS):
        moments = _moments(activation, samples, order, best)
        terms = decompose(moments[order], method="newton", key=key.fold("turn", turn))
        start = norm * directions_of(activation, terms, moments)
        fit = polish(activation, few, start)
        if best is None or fit.misfit < best.misfit:
            best = fit
        if best.misfit < EXACT:
            break
    assert best is not None  # there is at least one turn
    return best


def solve_gates(activation: Activation, samples: Samples, order: int, key: Key) -> Opened:
    """Solve for piecewise linear activations: by recurring steps, else with gates in place of the fit."""
    gates, best = Gates(samples), None
    drop = float(gate_drop(activation))
    gates.look_for_steps(key.fold("steps"))
    if gates.complete or samples.points.shape[1] > _LARGEST:
        return gates.opened(drop)
    for turn in range(_ROUNDS):
        moments = _moments(activation, samples, order, best)
        terms = decompose(moments[order], key=key.fold("turn", turn))
        gates.look_near(directions_of(activation, terms, moments))
        opened = gates.opened(drop)
        if gates.complete:
            break
        strengths = best_strengths(activation, samples, opened.directions)
        best = Fit(opened.directions, strengths, 1.0)
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


def directions_of(activation: Activation, terms: Terms, *outputs: list[Tensor]) -> Tensor:
    """(b, q) with the signs that the decomposed moments leave open. outputs: the moments of each.

    Order 4 gives the sign of r_i, and T_1 = sum_i r_i c_1 u_i then that of u_i. Order 3 gives the sign of
    r_i u_i, and T_2 = sum_i r_i c_2 u_i u_i^T that of r_i; an odd activation has no T_2 and leaves it
    open: (x, r) and (-x, -r) are the same function. With a constant, as the sigmoid's half, they are not:
    T_0 = c_0 sum_i r_i.
    """
    order, c, units = len(outputs[0]) - 1, coefficients(activation), terms.directions
    if order == 3 and abs(c[2]) < _NO_SECOND:
        if abs(c[0]) < _NO_SECOND or len(units) > _SIGNS:
            return units
        third = terms.weights.reshape(len(outputs), -1) / c[3]
        first = torch.stack([_first_weights(units, moments) for moments in outputs]) / c[1]
        # c_1 grows as the norm and c_3 as its cube: their ratio is the square of the usual norm
        norm = float((third / first).abs().median().sqrt())
        constants = torch.stack([moments[0] for moments in outputs]) / c[0]
        return units * _signs_by_constant(first / norm, constants)[:, None]
    agree = c[1] * c[4] if order == 4 else c[2] * c[3]
    votes = torch.zeros_like(units[:, 0])
    for weights, moments in zip(terms.weights.reshape(len(outputs), -1), outputs, strict=True):
        votes += weights * _other_weights(units, moments)
    signs = torch.sign(votes) * (1.0 if agree > 0 else -1.0)
    return units * torch.where(signs == 0, torch.ones_like(signs), signs)[:, None]


def _signs_by_constant(strengths: Tensor, constants: Tensor) -> Tensor:
    """(b,) the signs s for which sum_i s_i r_ki of all outputs (c, b) comes closest to (c,) constants."""
    count = strengths.shape[1]
    bits = torch.arange(2**count)[:, None] >> torch.arange(count)
    signs = 1.0 - 2.0 * (bits & 1).to(strengths)
    away = (signs @ strengths.T - constants).square().sum(1)
    return signs[int(away.argmin())]


def _first_weights(units: Tensor, moments: list[Tensor]) -> Tensor:
    """(b,) of the directions in T_1."""
    return least_squares(units.T, moments[1][:, None])[:, 0]


def _other_weights(units: Tensor, moments: list[Tensor]) -> Tensor:
    """(b,) of the directions in T_1, beside order 4, or in T_2, beside order 3."""
    if len(moments) == 5:
        return _first_weights(units, moments)
    gram = (units @ units.T).square()
    values = ((units @ moments[2]) * units).sum(1)
    return least_squares(gram, values[:, None])[:, 0]
