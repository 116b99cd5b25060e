"""Generalised linear models fitted to their optimum: no steps, no rate, no start that matters.

    theta* = argmin  sum_i loss(theta; x_i, y_i) + (kappa / 2) ||theta||^2,   i over all N records

`Penalty` says what kappa is and whether the bias is in the norm. At theta* the gradients of the
records and the penalty cancel, which is all that an informed adversary needs (attacks/informed/glm.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.glm import onehot
from exhume.models.mlp import MLP
from exhume.train.newton import Problem, Solution, minimise
from exhume.train.recipe import check_fits

__all__ = ["Optimum", "Penalty", "as_matrix", "augmented"]

_WARM = 1e-6  # gradient norm to which the shared start is fitted


@dataclass(frozen=True)
class Penalty:
    """L2 penalty. `of_mean(lam)`: mean loss + lam/2 ||theta||^2; `of_sum(C)`: scikit-learn's
    C · summed loss + 1/2 ||w||^2, bias free.
    """

    strength: float  # lam, or 1/C; at least 0
    averaged: bool  # beside the mean loss (True) or the summed loss
    bias: bool  # whether the bias is penalised too

    def __post_init__(self) -> None:
        if not 0 <= self.strength < float("inf"):
            raise ExhumeError(f"penalty: strength {self.strength} is not a number of at least 0")

    @staticmethod
    def of_mean(lam: float, *, bias: bool = True) -> Penalty:
        return Penalty(lam, averaged=True, bias=bias)

    @staticmethod
    def of_sum(c: float, *, bias: bool = False) -> Penalty:
        if not c > 0:
            raise ExhumeError(f"penalty: C {c} is not above 0")
        return Penalty(1 / c, averaged=False, bias=bias)

    def on_sum(self, records: int) -> float:
        """kappa, the factor beside the loss summed over so many records."""
        return self.strength * records if self.averaged else self.strength

    def diagonal(self, records: int, inputs: int) -> Tensor:
        """(d + 1,) fp64: kappa for each weight of one output and for its bias, which comes last."""
        kappa = torch.full((inputs + 1,), self.on_sum(records), dtype=torch.float64)
        if not self.bias:
            kappa[-1] = 0
        return kappa

    def __str__(self) -> str:
        words = f"lambda = {self.strength:g}" if self.averaged else f"1/C = {self.strength:g}"
        return f"L2 penalty {words}, bias {'penalised' if self.bias else 'free'}"


@dataclass(frozen=True)
class Optimum:
    """Softmax regression (or logistic, with one output) at its penalised optimum, in fp64.

    The optimum is unique, so the initial parameters and the key are not used; a free bias of softmax
    regression is only determined up to a shift, and is returned with mean zero.
    """

    architecture: MLP
    penalty: Penalty
    tolerance: float = 1e-12  # norm of the gradient of (summed loss + penalty) / N

    def __post_init__(self) -> None:
        if self.architecture.hidden:
            raise ExhumeError(
                f"architecture: {self.architecture} has hidden layers; only a model without any "
                "has one optimum"
            )

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        check_fits(self.architecture, fixed)
        if not self.penalty.strength > 0:
            raise ExhumeError(
                "penalty: strength 0 leaves separable records without an optimum; it must be positive"
            )
        models, more = extra.labels.shape
        live = _live(fixed, extra)
        base = self._problem(fixed, fixed.none_for(1), live)
        begin = base.ridge.new_zeros(1, self.architecture.outputs, len(base.ridge))
        if not more:
            solved = minimise(base, begin, tolerance=self.tolerance)
            return self._flat(solved, live).expand(models, -1).clone()
        # every model starts at the optimum of the fixed records, one record away from its own
        start = minimise(base, begin, tolerance=_WARM).parameters
        problem = self._problem(fixed, extra, live)
        solved = minimise(problem, start.expand(models, -1, -1), tolerance=self.tolerance)
        return self._flat(solved, live)

    def _problem(self, fixed: Records, extra: Records, live: Tensor) -> Problem:
        total = len(fixed) + extra.labels.shape[1]
        ridge = self.penalty.diagonal(total, self.architecture.sizes[0]).to(live.device)
        return Problem(
            fixed=augmented(fixed.inputs, 1)[:, live],
            wanted=onehot(fixed.labels, self.architecture.outputs),
            extra=augmented(extra.inputs, 2)[:, :, live],
            wanted_extra=onehot(extra.labels, self.architecture.outputs),
            ridge=ridge[live] / total,
        )

    def _flat(self, solved: Solution, live: Tensor) -> Tensor:
        """The layout's (s, p), once the gradients are seen to be small."""
        worst = float(solved.norms.max())
        if not worst <= self.tolerance:
            raise ExhumeError(
                f"fitting stopped at a gradient norm of {worst:.1e}, above the tolerance of "
                f"{self.tolerance:.1e}; raise the penalty or the tolerance, or scale the records"
            )
        found = solved.parameters.new_zeros(*solved.parameters.shape[:2], len(live))
        found[:, :, live] = solved.parameters
        weight, bias = found[:, :, :-1], found[:, :, -1]
        if not self.penalty.bias and self.architecture.outputs > 1:
            bias = bias - bias.mean(1, keepdim=True)
        return torch.cat([weight.flatten(1), bias], 1)

    def bytes_per_model(self, records: int) -> int:
        return 8 * (6 * records * self.architecture.outputs + 10 * self.architecture.layout.size)

    def __str__(self) -> str:
        kind = "logistic" if self.architecture.outputs == 1 else "softmax"
        return f"{kind} regression at its optimum, {self.penalty}, gradient <= {self.tolerance:g}"


def augmented(inputs: Tensor, lead: int) -> Tensor:
    """Flatten all but the first `lead` axes and append the constant 1 that the bias multiplies, in fp64."""
    flat = inputs.flatten(lead).double()
    return torch.cat([flat, flat.new_ones(*flat.shape[:-1], 1)], -1)


def as_matrix(architecture: MLP, parameters: Tensor) -> Tensor:
    """(..., p) to (..., c, d + 1) in fp64, the bias last."""
    weight, bias = architecture.layout.split(parameters.double()).values()
    return torch.cat([weight, bias[..., None]], -1)


def _live(fixed: Records, extra: Records) -> Tensor:
    """(d + 1,) bool: inputs that are not zero in every record. The others' optimal weights are zero."""
    seen = (augmented(fixed.inputs, 1) != 0).any(0)
    return seen | (augmented(extra.inputs, 2) != 0).flatten(0, 1).any(0)
