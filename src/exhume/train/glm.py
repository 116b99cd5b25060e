"""Generalised linear models fitted to their optimum: no steps, no rate, no start that matters.

    theta* = argmin  sum_i loss(theta; x_i, y_i) + (kappa / 2) ||theta||^2,   i over all N records

`Penalty` says what kappa is and whether the bias is in the norm. At theta* the gradients of the
records and the penalty cancel, which is all that an informed adversary needs (attacks/informed/glm.py).

Newton's method with preconditioned conjugate gradients, for s generalised linear models at once.

All models share the fixed records, so a Hessian-vector product of all of them is two products with
one matrix. The preconditioner is the Hessian's diagonal blocks, one per output, taken at one model and
shared: the models differ by a record or so. Everything is fp64; gradient norms of 1e-12 and below are
the point.

Shapes: q = d + 1 inputs with the constant 1 last, m = n + e records of one model.
Cost: 4·s·m·q·c operations a product; the preconditioner c·(n·q^2 + q^3) once. Memory: about 6·s·m·c numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.glm import onehot, probabilities
from exhume.models.mlp import MLP
from exhume.train.objective import CROSS_ENTROPY

_WARM = 1e-6  # gradient norm to which the shared start is fitted
_STEPS = 60  # of Newton; a dozen is usual
_PRODUCTS = 400  # of one conjugate-gradient solve
_PATIENCE = 25  # products after which one model's new preconditioner is worth its price
_EXACT = 1e-3  # residual of a Newton step, relative to the gradient, near the optimum
_SHRUNK = 0.5  # share of its norm that a gradient may keep after a step in fp32
_HALVINGS = 40


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
        CROSS_ENTROPY.check_fits(self.architecture, fixed)
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
        theta = solved.parameters.new_zeros(*solved.parameters.shape[:2], len(live))
        theta[:, :, live] = solved.parameters
        weight, bias = theta[:, :, :-1], theta[:, :, -1]
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


@dataclass(frozen=True, eq=False)
class Problem:
    """(1/m) summed cross-entropy + 1/2 sum_j ridge_j theta_j^2 of s models."""

    fixed: Tensor  # (n, q)
    wanted: Tensor  # (c, n)
    extra: Tensor  # (s, e, q)
    wanted_extra: Tensor  # (s, c, e)
    ridge: Tensor  # (q,)

    @property
    def records(self) -> int:
        return len(self.fixed) + self.extra.shape[1]

    def only(self, models: Tensor) -> Problem:
        return replace(self, extra=self.extra[models], wanted_extra=self.wanted_extra[models])

    def to(self, dtype: torch.dtype) -> Problem:
        return Problem(*(getattr(self, f.name).to(dtype) for f in fields(self)))

    def logits(self, theta: Tensor) -> Tensor:
        """(s, c, q) to (s, c, m)."""
        s, c, q = theta.shape
        n = len(self.fixed)
        out = theta.new_empty(s, c, self.records)
        out[:, :, :n] = (theta.reshape(s * c, q) @ self.fixed.T).view(s, c, n)
        out[:, :, n:] = torch.bmm(theta, self.extra.transpose(1, 2))
        return out

    def pulled_back(self, error: Tensor) -> Tensor:
        """(s, c, m) per-record numbers to (s, c, q): the transpose of `logits`, over m."""
        s, c, _ = error.shape
        n = len(self.fixed)
        out = (error[:, :, :n].reshape(s * c, n) @ self.fixed).view(s, c, -1)
        return out.baddbmm_(error[:, :, n:], self.extra).div_(self.records)

    def errors(self, logits: Tensor) -> Tensor:
        """(s, c, m): d loss / d logits = probability - wanted."""
        error = probabilities(logits)
        n = len(self.fixed)
        error[:, :, :n] -= self.wanted
        error[:, :, n:] -= self.wanted_extra
        return error

    def gradient(self, theta: Tensor, logits: Tensor) -> Tensor:
        return self.pulled_back(self.errors(logits)) + self.ridge * theta

    def curvature(self, means: Tensor, along: Tensor) -> Tensor:
        """The Hessian at `means` (s, c, m) times `along` (s, c, q)."""
        change = self.logits(along)
        if means.shape[1] == 1:
            moved = means * (1 - means) * change
        else:  # (diag(p) - p p^T) change
            moved = means * (change - (means * change).sum(1, keepdim=True))
        return self.pulled_back(moved) + self.ridge * along


@dataclass(frozen=True, eq=False)
class Solution:
    parameters: Tensor  # (s, c, q)
    norms: Tensor  # (s,) of the gradients there


def minimise(problem: Problem, start: Tensor, *, tolerance: float) -> Solution:
    """Start (s, c, q) in fp64; stops when every gradient norm is within the tolerance, or at the last step.

    A Newton step need not be exact, only the gradient does, so steps are solved in fp32 until one of
    them fails to shrink its gradient.
    """
    parameters = start.clone()
    norms = parameters.new_full((len(parameters),), float("inf"))
    working, inverse = torch.float32, None
    for _ in range(_STEPS):
        busy = (norms > tolerance).nonzero()[:, 0]
        part, theta = problem.only(busy), parameters[busy]
        logits = part.logits(theta)
        gradient = part.gradient(theta, logits)
        before, norms[busy] = norms[busy], _norms(gradient)
        left = norms[busy] > tolerance
        if not bool(left.any()):
            break
        if bool((norms[busy] > _SHRUNK * before)[left].any()):
            working, inverse = torch.float64, None
        part, theta, logits, gradient = part.only(left), theta[left], logits[left], gradient[left]
        means = probabilities(logits)
        if inverse is None:
            inverse = _block_inverse(part, means[0]).to(working)
        goal = norms[busy[left]].clamp(_EXACT, 0.1)
        step, products = _newton_step(part, means, gradient, inverse, goal)
        if products > _PATIENCE and len(theta) == 1:
            inverse = None
        length = _lengths(part, theta, logits, gradient, step)
        parameters[busy[left]] = theta + length[:, None, None] * step
    return Solution(parameters, norms)


def _norms(tensor: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(tensor.flatten(1), dim=1)
    return norms


def _inner(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).flatten(1).sum(1)


def _block_inverse(problem: Problem, means: Tensor) -> Tensor:
    """(c, m) means of one model to the inverses (c, q, q) of its Hessian's diagonal blocks."""
    x = problem.fixed
    weights = (means * (1 - means))[:, : len(x)] / problem.records
    blocks = torch.stack([x.T @ (row[:, None] * x) for row in weights])
    diagonal = blocks.diagonal(dim1=1, dim2=2)
    diagonal += problem.ridge
    diagonal += 1e-8 * diagonal.amax(1, keepdim=True)  # a free bias of a saturated output
    return torch.cholesky_inverse(torch.linalg.cholesky(blocks))


def _newton_step(
    problem: Problem, means: Tensor, gradient: Tensor, inverse: Tensor, goal: Tensor
) -> tuple[Tensor, int]:
    """-H^-1 gradient (s, c, q) by conjugate gradients, in the precision of `inverse`, and the products taken.

    goal: (s,) the residual to reach, relative to the gradient. A model that is there leaves the batch.
    """
    scale = _norms(gradient)[:, None, None]
    problem, means = problem.to(inverse.dtype), means.to(inverse.dtype)
    residual, goal = (-gradient / scale).to(inverse.dtype), goal.to(inverse.dtype)
    step, rows = torch.zeros_like(residual), torch.arange(len(residual), device=residual.device)

    def precondition(vector: Tensor) -> Tensor:
        return torch.bmm(vector.transpose(0, 1), inverse).transpose(0, 1)

    along = precondition(residual)
    slope = _inner(residual, along)
    products = 0
    while products < _PRODUCTS:
        products += 1
        curved = problem.curvature(means, along)
        bend = _inner(along, curved)
        sound = bend > 0  # rounding may say otherwise where the model is saturated: stop there
        plain = 1.0 if products == 1 else 0.0  # but go at least along the preconditioned gradient
        length = torch.where(sound, slope / bend, plain)[:, None, None]
        step[rows] += length * along
        residual = residual - length * curved
        going = sound & (_norms(residual) > goal)
        if not bool(going.any()):
            break
        if not bool(going.all()):
            rows, residual, along, slope = rows[going], residual[going], along[going], slope[going]
            problem, means, goal = problem.only(going), means[going], goal[going]
        towards = precondition(residual)
        before, slope = slope, _inner(residual, towards)
        along = towards + (slope / before)[:, None, None] * along
    return step.to(gradient.dtype) * scale, products


def _lengths(
    problem: Problem, theta: Tensor, logits: Tensor, gradient: Tensor, step: Tensor
) -> Tensor:
    """(s,) 1, halved until the slope along the step is no longer a steep ascent.

    Slopes instead of values: near the optimum the values agree to 16 digits long before the gradients
    are small. Along a step the logits are linear, so a trial costs no product.
    """
    change = problem.logits(step)
    lengths = theta.new_ones(len(theta))
    descent = -_inner(gradient, step)
    curved, linear = _inner(problem.ridge * step, step), _inner(problem.ridge * theta, step)
    for _ in range(_HALVINGS):
        errors = problem.errors(logits + lengths[:, None, None] * change)
        slope = _inner(errors, change) / problem.records + linear + lengths * curved
        steep = slope > 0.5 * descent.clamp_min(0) + 1e-30
        if not bool(steep.any()):
            break
        lengths = torch.where(steep, lengths / 2, lengths)
    return lengths
