"""Descent on the stationarity residual over candidates and their multipliers.

The candidates are C = Y diag(spread): steps in Y are of the size that inputs vary in each direction. Rates
fall along half a cosine. Two optimisers: momentum as published, and Adam.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from exhume.attacks.margin.pool import Run
from exhume.attacks.margin.priors import Prior
from exhume.attacks.margin.residual import Residual, Span

__all__ = ["Descent", "Found", "Start", "descend", "fall", "stepper"]

_BETAS, _TINY, _LAST = (0.9, 0.999), 1e-8, 0.02
_PENALTY = 5.0  # of multipliers below their floor (authors' code)
_DIVERGED = 1e6  # a residual of so many times the weights, or none at all


@dataclass(frozen=True)
class Descent:
    method: Literal["adam", "momentum"] = "adam"
    steps: int = 300
    rate: float = 0.05  # of the candidates
    multiplier_rate: float = 0.05
    falling: bool = True  # rates fall along half a cosine; the published ones are constant


@dataclass(frozen=True, eq=False)
class Start:
    """Where a descent begins, and the shape of the space it moves in."""

    coordinates: Tensor  # (m, r)
    raw: Tensor  # (m,) what the multipliers are made of
    spread: Tensor  # (r,)
    multiplier: Literal["log", "squared", "penalty", "free"] = "log"
    """lambda / share: exp(raw); raw² + floor; raw with a penalty 5·(floor - raw)_+²; raw."""
    floor: float = 0.0
    share: float = 1.0
    largest: float = math.inf  # norm of a candidate
    absolute: bool = False  # the residual itself instead of its share of the weights


@dataclass(frozen=True, eq=False)
class Found:
    coordinates: Tensor  # (m, r)
    multipliers: Tensor  # (m,)
    margins: Tensor  # (m,)
    loss: float  # relative squared residual
    diverged: float = -1.0  # step at which it stopped being finite: this is from before; -1: never

    def run(self, span: Span, labels: Tensor, records: int | float) -> Run:
        """As a restart that assumed so many training records."""
        explained = self.multipliers * self.margins
        inputs = span.inputs(self.coordinates)
        return Run(inputs, labels, explained, self.loss, self.diverged, float(records))


def descend(
    problem: Residual,
    start: Start,
    descent: Descent,
    *,
    prior: Prior,
    shape: tuple[int, ...],
    progress: Callable[[int], None],
) -> Found:
    raw, scaled = start.raw.clone(), start.coordinates / start.spread
    kept, diverged = (raw, scaled), -1.0
    rates = [descent.rate, descent.multiplier_rate]
    update = stepper(descent.method, [scaled, raw], rates)
    for step in range(descent.steps):
        lam, slope = _multipliers(start, raw)
        coordinates = scaled * start.spread
        value = problem.at(coordinates, lam)
        if not value.loss < _DIVERGED:
            (raw, scaled), diverged = kept, float(step)
            break
        kept = (raw.clone(), scaled.clone())
        by_c, by_lambda = value.coordinates, value.multipliers
        if start.absolute:
            by_c, by_lambda = by_c * problem.norm, by_lambda * problem.norm
        if prior:
            _, pull = prior.at(problem.span.inputs(coordinates), shape)
            by_c = by_c + pull @ problem.span.basis.T
        by_raw = by_lambda * slope
        if start.multiplier == "penalty":
            by_raw = by_raw - 2 * _PENALTY * (start.floor - raw).clamp_min(0)
        update([by_c * start.spread, by_raw], fall(descent, step))
        if start.largest < math.inf:
            norms = (scaled * start.spread).norm(dim=1, keepdim=True)
            scaled.mul_((start.largest / norms).clamp(max=1))
        progress(step + 1)
    lam, _ = _multipliers(start, raw)
    last = problem.at(scaled * start.spread, lam)
    return Found(scaled * start.spread, lam, last.margins, last.loss, diverged)


def _multipliers(start: Start, raw: Tensor) -> tuple[Tensor, Tensor]:
    """lambda and d lambda / d raw."""
    if start.multiplier == "log":
        lam, slope = raw.exp(), raw.exp()
    elif start.multiplier == "squared":
        lam, slope = raw.square() + start.floor, 2 * raw
    else:
        lam, slope = raw, torch.ones_like(raw)
    return start.share * lam, start.share * slope


def fall(descent: Descent, step: int) -> float:
    """The share of the rate at a step, counted from 0."""
    if not descent.falling:
        return 1.0
    return _LAST + (1 - _LAST) * 0.5 * (1 + math.cos(math.pi * (step + 1) / descent.steps))


def stepper(
    method: Literal["adam", "momentum"],
    parameters: list[Tensor],
    rates: list[float],
    tiny: float = _TINY,
) -> Callable[[list[Tensor], float], None]:
    """A function of the gradients and the share of the rate: one step, in place."""
    first = [torch.zeros_like(tensor) for tensor in parameters]
    second = [torch.zeros_like(tensor) for tensor in parameters]
    done = 0

    def adam(gradients: list[Tensor], share: float) -> None:
        nonlocal done
        done += 1
        (b1, b2), each = _BETAS, zip(parameters, first, second, gradients, rates, strict=True)
        for tensor, mean, square, gradient, rate in each:
            mean.lerp_(gradient, 1 - b1)
            square.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
            size = (square / (1 - b2**done)).sqrt_().add_(tiny)
            tensor.addcdiv_(mean, size, value=-share * rate / (1 - b1**done))

    def momentum(gradients: list[Tensor], share: float) -> None:
        for tensor, velocity, gradient, rate in zip(
            parameters, first, gradients, rates, strict=True
        ):
            velocity.mul_(_BETAS[0]).add_(gradient)
            tensor.sub_(velocity, alpha=share * rate)

    return adam if method == "adam" else momentum
