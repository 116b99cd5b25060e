"""The missing record of a generalised linear model, exactly, from the weights at the optimum (Balle22).

At the optimum the gradients of all N = |D-| + 1 records and of the penalty cancel. The adversary can
compute all of them but one, so it knows the missing record's gradient

    G = -( sum_{D-} grad loss + kappa theta )  =  a (x, 1)^T,     a = p(x) - onehot(y)

The bias column of G is a, so with G_w the rest:  x = a^T G_w / a^T a  (logistic: x = G_w / G_b), and y
is the one negative entry of a (logistic: 1 if a < 0). G is unchanged when all logits shift together, so
it does not matter which of softmax regression's equivalent optima was released.

Cost: 4·n·d·c operations a release. Memory: 8·n·(d + c·64) bytes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.releases import weights_of
from exhume.core.contract import (
    Architecture,
    Cost,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Records,
    Release,
    Status,
    Store,
    silent,
)
from exhume.models.glm import onehot, probabilities
from exhume.train.glm import Optimum, as_matrix, augmented

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
    ) -> PreparedGlm:
        knowledge.require("the closed form of linear models", "recipe", "fixed")
        recipe, fixed = knowledge.recipe, knowledge.fixed
        assert recipe is not None  # `require` has seen to these two
        assert fixed is not None
        _applicable(recipe.architecture)
        if not isinstance(recipe, Optimum):
            raise NotApplicable(
                f"the closed form of linear models needs weights at the optimum of a known penalty; "
                f"{recipe} stops elsewhere",
                ever=False,
            )
        return PreparedGlm(recipe, fixed)


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


@dataclass(frozen=True, eq=False)
class PreparedGlm:
    recipe: Optimum
    fixed: Records

    def run(self, releases: Release) -> Reconstruction:
        shape, size = self.fixed.shape, self.recipe.architecture.layout.size
        who, whose = "the closed form of linear models", "the recipe's model has"
        released = weights_of(releases, shape, size, who=who, whose=whose)
        if isinstance(released, Reconstruction):
            return released
        started, parameters = time.perf_counter(), released.parameters
        gradient = missing_gradient(self.recipe, parameters, self.fixed)
        records, labels = read_record(gradient)
        theta = as_matrix(self.recipe.architecture, parameters)
        mismatch = _mismatch(theta, gradient, records, labels)
        observed = {
            "certificate_median": float(mismatch.median()),
            "certificate_worst": float(mismatch.max()),
        }
        if gradient.shape[1] > 1:
            observed["rank_one_residual_worst"] = float(_rank_one_residual(gradient).max())
        return Reconstruction(
            candidates=records.reshape(-1, 1, *shape).to(parameters.dtype),
            confidence=-mismatch[:, None],
            status=Status(Outcome.CONVERGED),
            cost=Cost(time.perf_counter() - started),
            labels=labels[:, None],
            observed=observed,
        )


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


def read_record(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c, d + 1) gradients of one record each to records (r, d) and labels (r,)."""
    a = gradient[:, :, -1]
    tiny = torch.finfo(gradient.dtype).tiny
    size = a.square().sum(1).clamp_min(tiny)
    records = torch.einsum("rc,rcd->rd", a, gradient[:, :, :-1]) / size[:, None]
    labels = (a[:, 0] < 0).long() if a.shape[1] == 1 else a.argmin(1)
    return records, labels


def _rank_one_residual(gradient: Tensor) -> Tensor:
    """(r,) ||G_w - a x^T|| / ||G_w||: zero if one record alone is missing. Says nothing for one output."""
    records, _ = read_record(gradient)
    explained = gradient[:, :, -1:] * records[:, None]
    return _ratio(gradient[:, :, :-1] - explained, gradient[:, :, :-1])


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
