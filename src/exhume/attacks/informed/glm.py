"""The missing record of a linear model, exactly, from the weights at the optimum (Balle22).

At the optimum the gradients of all N = |D-| + 1 records and of the penalty cancel. The adversary can
compute all of them but one, so it knows the missing record's gradient

    G = -( sum_{D-} grad loss + kappa theta )  =  a (x, 1)^T

    softmax or logistic regression    a = p(x) - onehot(y)
    linear or ridge regression        a = theta (x, 1) - y

The bias column of G is a, so with G_w the rest:  x = a^T G_w / a^T a  (logistic: x = G_w / G_b), and y
is the one negative entry of a (logistic: 1 if a < 0), or theta (x, 1) - a. G is unchanged when all logits
shift together, so it does not matter which of softmax regression's equivalent optima was released.

Cost: 4·n·d·c operations a release. Memory: 8·n·(d + c·64) bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.releases import OneEach, read_weights
from exhume.core.contract import (
    Architecture,
    Cost,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Reconstruction,
    Records,
    Release,
    Store,
    Weights,
    silent,
)
from exhume.models.glm import onehot, probabilities
from exhume.train.glm import Optimum, as_matrix, augmented
from exhume.train.linear import LinearFit

_CHUNK = 64  # releases whose probabilities on the fixed records are held at once


@dataclass(frozen=True)
class GlmClosedForm:
    """Solve for the one unknown training record of a softmax or logistic regression.

    Sees: `Weights`, r models, each at the optimum of the fixed set and one unknown record.
    Assumes: the fixed set, and the recipe: a model without hidden layers, with a bias, and its penalty.
    No initial parameters, no shadow models, no records of its own.
    Guarantees: exact up to N times the gradient norm at which fitting stopped, over ||a||: records that
    the model already predicts well are the harder ones. Every answer carries a certificate: its own
    gradient against the missing one; it is near zero only if fixed set, penalty and optimum are as assumed.
    Reference: Balle22 (convex models in closed form); the certificate is ours.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedLinear:
        who = "the closed form of linear models"
        recipe, fixed = knowledge.require(who, "recipe", "fixed")
        _applicable(recipe.architecture)
        if not isinstance(recipe, Optimum):
            raise NotApplicable(
                f"{who} needs weights at the optimum of a known penalty; {recipe} stops elsewhere",
                ever=False,
            )
        return PreparedLinear(recipe, fixed, who)


def _applicable(architecture: Architecture) -> None:
    """A weight (c, d) and a bias (c,), nothing else."""
    shapes = architecture.layout.shapes
    if len(shapes) == 1 and len(shapes[0]) == 2:
        raise NotApplicable(
            f"{architecture} has no bias: the missing gradient gives the record's direction, "
            "not its length",
            ever=True,
        )
    if [len(shape) for shape in shapes] != [2, 1]:
        raise NotApplicable(
            f"{architecture} has hidden layers: its optimum is not unique and the missing gradient "
            "is not that of a linear model",
            ever=False,
        )


@dataclass(frozen=True)
class LinearClosedForm:
    """Solve for the one unknown training row of a linear or ridge regression.

    Sees: `Weights`, r models, each at the optimum of the fixed set and one unknown row.
    Assumes: the fixed set, and the recipe: its penalty, and a bias that is not penalised.
    No initial parameters, no shadow models, no records of its own.
    Guarantees: exact up to N times the rounding of the fit, over the row's residual ||a||. A gradient has as
    many numbers as a row with one target, so an answer carries no certificate; its confidence is ||a||.
    Reference: Balle22 (convex models in closed form); for squared errors ours.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> PreparedLinear:
        who = "the closed form of linear regressions"
        recipe, fixed = knowledge.require(who, "recipe", "fixed")
        if not isinstance(recipe, LinearFit):
            raise NotApplicable(
                f"{who} needs least squares at their optimum, not {recipe}", ever=False
            )
        return PreparedLinear(recipe, fixed, who)


@dataclass(frozen=True, eq=False)
class PreparedLinear:
    recipe: Optimum | LinearFit
    fixed: Records
    who: str

    def run(self, releases: Release) -> Reconstruction:
        shape, size = self.fixed.shape, self.recipe.architecture.layout.size
        answer, whose = self._answer, "the recipe's model has"
        return read_weights(releases, shape, size, answer, Cost(), who=self.who, whose=whose)

    def _answer(self, releases: Weights) -> OneEach:
        theta = as_matrix(self.recipe.architecture, releases.parameters)
        if isinstance(self.recipe, LinearFit):
            gradient = _missing_row(self.recipe, theta, self.fixed)
            return read_row(theta, gradient), gradient[:, :, -1].norm(dim=1), None, {}
        gradient = missing_gradient(self.recipe, releases.parameters, self.fixed)
        records, labels = read_record(gradient)
        mismatch = _mismatch(theta, gradient, records, labels)
        observed = {
            "certificate_median": float(mismatch.median()),
            "certificate_worst": float(mismatch.max()),
        }
        if gradient.shape[1] > 1:  # zero if one record alone is missing; one output says nothing
            rest = gradient[:, :, :-1]
            left = _ratio(rest - gradient[:, :, -1:] * records[:, None], rest)
            observed["rank_one_residual_worst"] = float(left.max())
        return records.to(releases.parameters.dtype), -mismatch, labels, observed


def missing_gradient(recipe: Optimum, parameters: Tensor, fixed: Records) -> Tensor:
    """(r, p) optima to what the fixed records leave unexplained, (r, c, d + 1) with the bias last."""
    theta = as_matrix(recipe.architecture, parameters)
    kappa = recipe.penalty.diagonal(len(fixed) + 1, recipe.architecture.sizes[0]).to(theta.device)
    gradient = -kappa * theta
    inputs = augmented(fixed.inputs, 1)
    live = (inputs != 0).any(0)  # the others add nothing, as around MNIST's digits
    inputs, wanted = inputs[:, live], onehot(fixed.labels, theta.shape[1])
    for start in range(0, len(theta), _CHUNK):
        part = theta[start : start + _CHUNK, :, live]
        error = probabilities(torch.matmul(part, inputs.T)) - wanted
        gradient[start : start + _CHUNK, :, live] -= torch.matmul(error, inputs)
    return gradient


def _missing_row(recipe: LinearFit, theta: Tensor, fixed: Records) -> Tensor:
    """`missing_gradient` of a regression."""
    inputs, targets = recipe.parts(fixed)
    kappa = recipe.penalty.diagonal(len(fixed) + 1, recipe.architecture.sizes[0])
    return -(torch.matmul(torch.matmul(theta, inputs.T) - targets.T, inputs) + kappa * theta)


def read_row(theta: Tensor, gradient: Tensor) -> Tensor:
    """(r, c, d + 1) regressions and gradients of one row each to the rows (r, d + c), inputs and targets."""
    inputs, _ = read_record(gradient)
    targets = torch.einsum("rcd,rd->rc", theta, augmented(inputs, 1)) - gradient[:, :, -1]
    return torch.cat([inputs, targets], 1)


def read_record(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c, d + 1) gradients of one record each to records (r, d) and labels (r,)."""
    a = gradient[:, :, -1]
    tiny = torch.finfo(gradient.dtype).tiny
    size = a.square().sum(1).clamp_min(tiny)
    records = torch.einsum("rc,rcd->rd", a, gradient[:, :, :-1]) / size[:, None]
    labels = (a[:, 0] < 0).long() if a.shape[1] == 1 else a.argmin(1)
    return records, labels


def _mismatch(theta: Tensor, gradient: Tensor, records: Tensor, labels: Tensor) -> Tensor:
    """(r,) ||G - gradient of the candidate|| / ||G||. Contains the rank-one residual, and asks besides
    that the model's own probabilities at the candidate give the a that was read.
    """
    inputs = augmented(records[:, None], 2)
    logits = torch.matmul(theta, inputs.transpose(1, 2))
    error = probabilities(logits) - onehot(labels[:, None], theta.shape[1])
    return _ratio(gradient - error * inputs, gradient)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    tiny = torch.finfo(whole.dtype).tiny
    small: Tensor = torch.linalg.vector_norm(part.flatten(1), dim=1)
    large: Tensor = torch.linalg.vector_norm(whole.flatten(1), dim=1)
    return small / large.clamp_min(tiny)
